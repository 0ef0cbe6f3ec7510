"""The CUDA engine: the numeric contract, the layout and the range coder in kernels compiled at first use.

    common.cuh    the contract's pieces, the range coder, the layout: what all kernels share
    batch.cu      many sessions: a kernel a stage, the rows of all sessions side by side
    wide.cu       the same by wgmma, where that was proven: products, heads, attention when encoding
    grid.cu       one session: one kernel decodes a whole block on the whole GPU
    gated.cu      one session of contract 2: the same for a gated bundle
    cluster.cu    few sessions: one kernel decodes a whole block, a cluster of 16 multiprocessors a session
    rows.py       the launches that take rows through the layers by batch.cu and wide.cu
    contexts.py   what sequences stand behind, in one parallel pass
    batch.py      sequences on the device, and which kernels code them
    pack.py       a bundle's tensors as the kernels read them
    device.py     the GPU: compiler, its cache, memory, launches
    emulate.py    the same on a CPU, for tests
    range_coder.py      CudaCoder: sequences to frames and back

Needs an NVIDIA GPU of compute capability 8.0 or later and the packages of the extra `pltz[cuda]`.
"""
