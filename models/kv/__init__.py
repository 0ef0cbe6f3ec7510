"""Forms of KV: how the keys and values of a segment are kept small, and what each form loses.

forms.py        kv_forms: the small forms of a target, ready for a store
codec.py        the port of a form; the form raw
lossless.py     the exact form of bfloat16 KV
q8.py, q4.py    forms of fixed width, for memory
predictive.py   the entropy-coded form, for disk and wire
streams.py      its entropy coder; ans.c
cuda_decoder.py the same form on a GPU
cuda.py         the kernels of all forms; kernels.cu
rotary.py       keys back to position 0, and to their positions again
calibration.py  the file that a target's predictors and tables come from (FORMAT.md)
fitting.py      makes a calibration
watch.py        which tokens a prefill attends to
measure.py      the static-prefix protocol
receipt.py      what was measured of a form
"""
