"""PPMd bytes, as plt_codec/FORMAT.md describes them: variant H of order 16, after 7-zip's and Shkarin's sources."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path

from tests.second_reader.fields import refuse

ORDER, FULL, TOP = 16, 1 << 23, 1 << 24
BINARY = 0x3CDD, 0x1F3F, 0x59BF, 0x48F3, 0x64A1, 0x5ABC, 0x6632, 0x6051
ESCAPES = 25, 14, 9, 7, 5, 5, 4, 4, 4, 3, 3, 3, 2, 2, 2, 2
ROWS = [0, 1, 2, *(3 + k for k in range(22) for _ in range(k + 1))]  # of the escapes, by symbols that are open
State = list[int]  # symbol, frequency, successor: a context, or less than 0 a place of the text, or 0


class Coder:
    """The range decoder of 7-zip."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.range = data + bytes(4), 4, 0xFFFFFFFF
        self.code = int.from_bytes(self.data[:4])

    def choose(self, row: list[State], total: int, chance: int = 0) -> State | None:
        """Return the next of some states, None for an escape. ``chance``: of the only one in place of its frequency."""
        unit, low, found = self.range // total, 0, None
        for state in row:
            width = chance or state[1]
            if self.code < (low + width) * unit:
                found = state
                break
            low += width
        width = width if found else total - low
        refuse(not chance and self.code >= total * unit, "a stream of no coder")
        self.range, self.code = self.range - low * unit if chance and low else width * unit, self.code - low * unit
        while self.range < TOP:
            refuse(self.at == len(self.data), "a stream that ends before its text")
            self.range, self.code = self.range << 8, (self.code << 8 | self.data[self.at]) & 0xFFFFFFFF
            self.at += 1
        return found


class Known(Coder):
    """Stands in for a coder where the model learns a text."""

    def choose(self, row: list[State], total: int, chance: int = 0) -> State | None:
        """Return the state of the next byte."""
        return next((state for state in row if state[0] == self.data[0]), None)


class Model:
    """Contexts by their number, the root first: each has a suffix, a sum of frequencies and states."""

    def __init__(self) -> None:
        self.text, self.suffix, self.sum = bytearray(1), [-1], [257]
        self.rows: list[list[State]] = [[[symbol, 1, 0] for symbol in range(256)]]
        self.longest = self.context = self.success = self.escape = self.last = self.added = 0
        self.fall, self.run = ORDER, -13
        self.binary = [[16384 - BINARY[k % 8] // (i + 2) for k in range(64)] for i in range(128)]
        self.see = [[[(5 * i + 10) << 3, 3, 4] for _ in range(16)] for i in range(25)]

    def step(self, coder: Coder) -> int:
        """Return the next byte."""
        c, high = self.context, 8 * (self.last > 63)
        row = self.rows[c]
        if len(row) == 1:
            state = self._binary(coder, c, row[0], high)
        else:
            state = coder.choose(row, self.sum[c])
            self.success = int(state is row[0] and 2 * row[0][1] > self.sum[c])
            if state:
                self._seen(c, state, True)
        self.run += self.success
        if not state:
            c, state = self._shorter(coder, c, high)
            self.run = -13
        self.last, self.context = state[0], c
        if self.fall or state[2] <= 0:
            self._learn(c, state)
        else:
            self.longest = self.context = state[2]
        return self.last

    def _binary(self, coder: Coder, c: int, state: State, high: int) -> State | None:
        few = 2 * sum(len(self.rows[self.suffix[c]]) > n for n in (1, 2, 11))
        place = self.success + few + high + 16 * (state[0] > 63) + 32 * (self.run < 0)
        chances = self.binary[state[1] - 1]
        chance = chances[place]
        found = coder.choose([state], 1 << 14, chance)
        self.success = int(found is state)
        chances[place] += 128 * self.success - (chance + 32 >> 7)
        if found:
            state[1] += state[1] < 128
        else:
            self.escape = ESCAPES[chances[place] >> 10]
        return found

    def _shorter(self, coder: Coder, c: int, high: int) -> tuple[int, State]:
        """Return a state after an escape from a context, and its own context."""
        while True:
            hidden = {state[0] for state in self.rows[c]}
            while len(self.rows[c]) <= len(hidden):
                refuse(c == 0, "a symbol of no context")
                c, self.fall = self.suffix[c], self.fall + 1
            row = self.rows[c]
            left, count, see, escape = [state for state in row if state[0] not in hidden], len(row), [0, 7, 64], 1
            if count < 256:
                more = len(left) < len(self.rows[self.suffix[c]]) - count
                few = self.sum[c] < 11 * count
                see = self.see[ROWS[len(left) - 1]][more + 2 * few + 4 * (len(hidden) > len(left)) + high]
                escape = see[0] >> see[1]
                see[0] = see[0] - escape & 0xFFFF
                escape = escape or 1
            total = sum(state[1] for state in left) + escape
            state = coder.choose(left, total)
            if state:
                see[2] -= see[1] < 7
                if not see[2]:
                    see[:] = see[0] << 1 & 0xFFFF, see[1] + 1, 3 << see[1] & 0xFF
                self._seen(c, state, False)
                return c, state
            see[0] = see[0] + total & 0xFFFF

    def _seen(self, c: int, state: State, forward: bool) -> None:
        """Count a state of a context, and halve all frequencies if that is high."""
        row = self.rows[c]
        i = row.index(state)
        self.sum[c] += 4
        state[1] += 4
        if forward and i and state[1] > row[i - 1][1]:
            row[i - 1 : i + 1] = row[i], row[i - 1]
        if state[1] <= 124:
            return
        state[1] += 4
        escape = self.sum[c] + 4 - sum(freq for _, freq, _ in row)
        row.remove(state)
        row.insert(0, state)
        for one in row:
            one[1] = one[1] + (self.fall != 0) >> 1
        row.sort(key=lambda one: -one[1])
        self.rows[c] = [one for one in row if one[1]]
        escape += len(row) - len(self.rows[c])
        if len(self.rows[c]) > 1:
            self.sum[c] = sum(freq for _, freq, _ in row) + escape - (escape >> 1)
        else:
            halvings = max(1, escape.bit_length() - 1)
            for _ in range(halvings):
                state[1] -= state[1] >> 1

    def _learn(self, c: int, state: State) -> None:
        """Learn a state in all contexts, and go on to the next one."""
        symbol, freq, to = state
        if freq < 31 and (d := self.suffix[c]) >= 0:
            row, other = self.rows[d], self._state(d, symbol)
            k = row.index(other)
            if len(row) == 1:
                other[1] += other[1] < 32
            else:
                if k and other[1] >= row[k - 1][1]:
                    row[k - 1 : k + 1] = row[k], row[k - 1]
                if other[1] < 115:
                    other[1] += 2
                    self.sum[d] += 2
        if not self.fall:
            state[2] = self.longest = self.context = self._created(c, state, True)
            return
        self.text.append(symbol)
        place = -len(self.text)
        if to:
            to = self._created(c, state, False) if to < 0 else to
            self.fall -= 1
            if not self.fall:
                place = to
                if self.longest != self.context:
                    self.text.pop()
        else:
            state[2], to = place, self.context
        count, d = len(self.rows[c]), self.longest
        while d != c:
            self._add(d, symbol, freq, place, count, self.sum[c] - count - (freq - 1))
            d = self.suffix[d]
        self.longest = self.context = to

    def _state(self, c: int, symbol: int) -> State:
        return next(state for state in self.rows[c] if state[0] == symbol)

    def _add(self, d: int, symbol: int, freq: int, place: int, count: int, rest: int) -> None:
        row = self.rows[d]
        many = len(row)
        if many == 1:
            before = row[0][1]
            row[0][1] = 2 * before if before < 30 else 120
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
        row.append([symbol, share, place])
        self.added += 1

    def _created(self, c: int, state: State, known: bool) -> int:
        """Return the context of a state's successor, which is but a place of the text so far."""
        symbol, _, branch = state
        leads = [] if known else [state]
        while self.suffix[c] >= 0:
            c = self.suffix[c]
            state = self._state(c, symbol)
            if state[2] != branch:
                c = state[2]
                if not leads:
                    return c
                break
            leads.append(state)
        symbol = self.text[-branch]
        freq, rest = self._state(c, symbol)[1], self.sum[c] - len(self.rows[c]) + 1
        if len(self.rows[c]) > 1:
            rest, freq = rest - freq, 2 * (freq - 1)
            freq = 1 + (5 * freq > 2 * rest if freq <= rest else (freq + 3 * rest - 1) // (2 * rest))
        for lead in leads[::-1]:
            lead[2] = len(self.rows)
            self.rows.append([[symbol, freq, branch - 1]])
            self.suffix.append(c)
            self.sum.append(0)
            self.added += 1
            c = lead[2]
        return c


def by_ppmd(data: bytes, count: int, past: bytes = b"", own: bytes | None = None) -> bytes:
    """Return the text of PPMd bytes after a past. ``own``: the primer, if it is not that for logs."""
    kind = data[0] if count else 0
    if not kind:
        refuse(len(data) != count + bool(count), "a text of another size")
        return data[1:]
    refuse(kind > 2 or count > 4096 * (len(data) + 16), "a model of no writer, or more text than PPMd bytes can have")
    begun = primed(own) if kind == 2 else pickle.dumps(Model())
    coder, model, found = Coder(data[1:]), pickle.loads(begun), bytearray()
    for at in range(len(past) + count):
        found.append(model.step(Known(past[at : at + 1]) if at < len(past) else coder))
        if len(model.text) - 1 + model.added >= FULL:
            model = pickle.loads(begun)
    more = len(data) - 1 - (coder.at - 4)
    refuse(more > 1 or (more == 1 and not data[-1]), "a stream that goes on behind its text")
    return bytes(found[len(past) :])


@cache
def primed(own: bytes | None) -> bytes:
    """Return the model that has seen the primer."""
    data, model = (Path(__file__).parents[2] / "plt_codec/primer.ppmd").read_bytes(), Model()
    for byte in by_ppmd(data[4:], int.from_bytes(data[:4], "little")) if own is None else own:
        model.step(Known(bytes([byte])))
    return pickle.dumps(model)
