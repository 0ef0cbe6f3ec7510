"""PPMd variant H of order 16, as plt_codec/FORMAT.md describes it, after 7-zip's and Shkarin's public sources."""

from __future__ import annotations

from tests.second_reader.fields import refuse

ORDER, FULL, TOP = 16, 1 << 23, 1 << 24
BINARY = 0x3CDD, 0x1F3F, 0x59BF, 0x48F3, 0x64A1, 0x5ABC, 0x6632, 0x6051
ESCAPES = 25, 14, 9, 7, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2, 2
ROWS = [0, 1, 2, *(3 + k for k in range(22) for _ in range(k + 1))]  # of the escapes, by symbols that are open
State = tuple[int, int, int]  # symbol, frequency, successor: a context, or less than 0 a place of the text, or 0


class Coder:
    """The range decoder of 7-zip."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.range = data + bytes(4), 4, 0xFFFFFFFF
        self.code = int.from_bytes(self.data[:4])

    def take(self, low: int, width: int) -> None:
        """Take a part of the range."""
        self.code, self.range = self.code - low, width
        while self.range < TOP:
            refuse(self.at == len(self.data), "a stream that ends before its text")
            self.range, self.code = self.range << 8, (self.code << 8 | self.data[self.at]) & 0xFFFFFFFF
            self.at += 1


class Model:
    """Contexts by their number, the root first: each has a suffix, a sum of frequencies and states."""

    def __init__(self, like: Model | None = None) -> None:
        self.text, self.suffix, self.sum = bytearray(1), [-1], [257]
        self.rows: list[list[State]] = [[(symbol, 1, 0) for symbol in range(256)]]
        self.longest = self.context = self.success = self.escape = self.last = self.high = self.added = 0
        self.fall, self.run = ORDER, -13
        self.binary = [[16384 - BINARY[k % 8] // (i + 2) for k in range(64)] for i in range(128)]
        self.see = [[[(5 * i + 10) << 3, 3, 4] for _ in range(16)] for i in range(25)]
        if like:
            self.__dict__.update(like.__dict__)
            self.text, self.suffix, self.sum = like.text[:], like.suffix[:], like.sum[:]
            self.rows, self.binary = [*map(list, like.rows)], [*map(list, like.binary)]
            self.see = [[list(see) for see in row] for row in like.see]

    def code(self, text: bytes, count: int = 0, coder: Coder | None = None, begun: Model | None = None) -> bytes:
        """Learn a text, or decode one of so many bytes. ``begun``: what the model is again where it is full."""
        found = bytearray(text)
        for at in range(count if coder else len(text)):
            symbol = self.step(coder, -1 if coder else text[at])
            if coder:
                found.append(symbol)
            if len(self.text) - 1 + self.added >= FULL:
                self.__init__(begun)  # type: ignore[misc]
        return bytes(found)

    def _index(self, c: int, symbol: int) -> int:
        return next(i for i, state in enumerate(self.rows[c]) if state[0] == symbol)

    def _more(self, c: int, i: int, freq: int) -> None:
        symbol, before, to = self.rows[c][i]
        self.rows[c][i] = symbol, before + freq, to

    def _lead(self, c: int, i: int, to: int) -> None:
        self.rows[c][i] = (*self.rows[c][i][:2], to)

    def step(self, coder: Coder | None, symbol: int) -> int:
        """Return the next symbol, which is decoded or given."""
        c = self.context
        row = self.rows[c]
        masked = len(row)
        if masked == 1:
            shorter = len(self.rows[self.suffix[c]])
            few = 0 if shorter == 1 else 2 if shorter == 2 else 4 if shorter < 12 else 6
            self.high = 8 * (self.last > 63)
            place = self.success + few + self.high + 16 * (row[0][0] > 63) + 32 * (self.run < 0)
            chances = self.binary[row[0][1] - 1]
            chance = chances[place]
            part = (coder.range >> 14) * chance if coder else 0
            if hit := coder.code < part if coder else row[0][0] == symbol:
                chances[place] += 128 - (chance + 32 >> 7)
            else:
                chances[place] -= chance + 32 >> 7
            if coder:
                coder.take(0 if hit else part, part if hit else coder.range - part)
            self.success = int(hit)
            if hit:
                self.last = row[0][0]
                self._more(c, 0, row[0][1] < 128)
                self.run += 1
                self._go(c, 0)
                return self.last
            self.escape = ESCAPES[chances[place] >> 10]
        else:
            i = self._chosen(coder, symbol, row, self.sum[c], set())
            self.success = int(i == 0 and 2 * row[0][1] > self.sum[c])
            if i < masked:
                self.run += self.success
                self.last = row[i][0]
                self.sum[c] += 4
                self._more(c, i, 4)
                if i and row[i][1] > row[i - 1][1]:
                    row[i - 1 : i + 1] = row[i], row[i - 1]
                    i -= 1
                self._go(c, self._rescaled(c, i))
                return self.last
            self.high = 8 * (self.last > 63)
        return self._shorter(coder, symbol, c, {state[0] for state in row})

    def _shorter(self, coder: Coder | None, symbol: int, c: int, hidden: set[int]) -> int:
        """Return a symbol that escaped from a context."""
        while True:
            while True:
                refuse(c == 0, "a symbol of no context")
                c, self.fall = self.suffix[c], self.fall + 1
                if len(row := self.rows[c]) > len(hidden):
                    break
            count, see = len(row), [0, 7, 64]
            escape, left = 1, count - len(hidden)
            if count < 256:
                more = left < len(self.rows[self.suffix[c]]) - count
                few = self.sum[c] < 11 * count
                see = self.see[ROWS[left - 1]][more + 2 * few + 4 * (len(hidden) > left) + self.high]
                escape = see[0] >> see[1]
                see[0] = see[0] - escape & 0xFFFF
                escape = escape or 1
            total = sum(freq for s, freq, _ in row if s not in hidden) + escape
            i = self._chosen(coder, symbol, row, total, hidden)
            if i == count:
                see[0] = see[0] + total & 0xFFFF
                hidden = {state[0] for state in row}
                continue
            if see[1] < 7:
                see[2] -= 1
                if not see[2]:
                    see[0], see[1], see[2] = see[0] << 1 & 0xFFFF, see[1] + 1, 3 << see[1] & 0xFF
            self.last, self.context = row[i][0], c
            self.sum[c] += 4
            self._more(c, i, 4)
            i = self._rescaled(c, i)
            self.run = -13
            self._learn(c, i)
            return self.last

    def _chosen(self, coder: Coder | None, symbol: int, row: list[State], total: int, hidden: set[int]) -> int:
        """Return the number of a state that is not hidden, or how many there are: an escape."""
        if not coder:
            return next((i for i, state in enumerate(row) if state[0] == symbol), len(row))
        unit, low = coder.range // total, 0
        code = coder.code // unit
        refuse(code >= total, "a stream of no coder")
        for i, (s, freq, _) in enumerate(row):
            if s not in hidden:
                if code < low + freq:
                    coder.take(low * unit, freq * unit)
                    return i
                low += freq
        coder.take(low * unit, (total - low) * unit)
        return len(row)

    def _rescaled(self, c: int, i: int) -> int:
        """Halve the frequencies of a context if that of a state is high. Return the number of that state."""
        row = self.rows[c]
        if row[i][1] <= 124:
            return i
        row.insert(0, row.pop(i))
        escape, adder = self.sum[c] - row[0][1], int(self.fall != 0)
        self._more(c, 0, 4)
        for k, (s, freq, to) in enumerate(row):
            escape -= freq if k else 0
            row[k] = s, freq + adder >> 1, to
        for k in range(1, len(row)):  # stable, like what 7-zip does while it halves them
            state = row.pop(k)
            while k and state[1] > row[k - 1][1]:
                k -= 1
            row.insert(k, state)
        gone = sum(not freq for _, freq, _ in row)
        if gone:
            del row[-gone:]
            escape += gone
            if len(row) == 1:
                s, freq, to = row[0]
                while True:
                    freq, escape = freq - (freq >> 1), escape >> 1
                    if escape <= 1:
                        break
                row[0] = s, freq, to
                return 0
        self.sum[c] = sum(freq for _, freq, _ in row) + escape - (escape >> 1)
        return 0

    def _go(self, c: int, i: int) -> None:
        to = self.rows[c][i][2]
        if self.fall or to <= 0:
            self._learn(c, i)
        else:
            self.longest = self.context = to

    def _learn(self, c: int, i: int) -> None:
        """Learn a state in all contexts, and go on to the next one."""
        symbol, freq, to = self.rows[c][i]
        if freq < 31 and self.suffix[c] >= 0:
            d = self.suffix[c]
            row, k = self.rows[d], self._index(d, symbol)
            if len(row) == 1:
                self._more(d, 0, row[0][1] < 32)
            else:
                if k and row[k][1] >= row[k - 1][1]:
                    row[k - 1 : k + 1] = row[k], row[k - 1]
                    k -= 1
                if row[k][1] < 115:
                    self._more(d, k, 2)
                    self.sum[d] += 2
        if not self.fall:
            self.longest = self.context = self._created(c, i, True)
            self._lead(c, i, self.context)
            return
        self.text.append(symbol)
        place = -len(self.text)
        if to:
            if to < 0:
                to = self._created(c, i, False)
            self.fall -= 1
            if not self.fall:
                place = to
                if self.longest != self.context:
                    self.text.pop()
        else:
            self._lead(c, i, place)
            to = self.context
        count, d = len(self.rows[c]), self.longest
        while d != c:
            self._add(d, symbol, freq, place, count, self.sum[c] - count - (freq - 1))
            d = self.suffix[d]
        self.longest = self.context = to

    def _add(self, d: int, symbol: int, freq: int, place: int, count: int, rest: int) -> None:
        row = self.rows[d]
        many = len(row)
        if many == 1:
            before = row[0][1]
            self._more(d, 0, before if before < 30 else 120 - before)
            self.sum[d] = row[0][1] + self.escape + (count > 3)
        else:
            self.sum[d] += (2 * many < count) + 2 * (4 * many <= count and self.sum[d] <= 8 * many)
        share, whole = 2 * freq * (self.sum[d] + 6), rest + self.sum[d]
        if share < 6 * whole:
            share = 1 + (share > whole) + (share >= 4 * whole)
            self.sum[d] += 3
        else:
            share = 4 + (share >= 9 * whole) + (share >= 12 * whole) + (share >= 15 * whole)
            self.sum[d] += share
        row.append((symbol, share, place))
        self.added += 1

    def _created(self, c: int, i: int, known: bool) -> int:
        """Return the context of a state's successor, which is but a place of the text so far."""
        symbol, _, branch = self.rows[c][i]
        leads = [] if known else [(c, i)]
        while self.suffix[c] >= 0:
            c = self.suffix[c]
            i = self._index(c, symbol)
            if (to := self.rows[c][i][2]) != branch:
                c = to
                if not leads:
                    return c
                break
            leads.append((c, i))
        symbol = self.text[-branch]
        freq = self.rows[c][self._index(c, symbol)][1]
        if len(self.rows[c]) > 1:
            rest = self.sum[c] - len(self.rows[c]) - (freq - 1)
            freq = 2 * (freq - 1)
            freq = 1 + (5 * freq > 2 * rest if freq <= rest else (freq + 3 * rest - 1) // (2 * rest))
        for d, i in leads[::-1]:
            self._lead(d, i, len(self.rows))
            self.rows.append([(symbol, freq, branch - 1)])
            self.suffix.append(c)
            self.sum.append(0)
            self.added += 1
            c = len(self.rows) - 1
        return c
