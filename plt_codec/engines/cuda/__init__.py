"""The CUDA engine: the numeric contract, the layout and the range coder in kernels that are compiled at first use.

    base.cuh      types and declarations, which the kernels of `kv/` include too
    common.cuh    the contract's pieces, the range coder, the layout: shared by all kernels
    batch.cu      many sessions: a kernel per stage, the rows of all sessions side by side
    grid.cu       one session: one kernel decodes a whole block on the whole GPU
    gated.cu      one session of contract 2: the same for a gated bundle
    cluster.cu    few sessions: one kernel decodes a whole block, a cluster of 16 multiprocessors per session
    structs.py    the structs shared with the kernels
    rows.py       the launches of the layers by batch.cu
    contexts.py   the contexts of sequences, in one parallel pass
    batch.py      sequences on the device, and the kernels that code them
    chain.py      sequences that each stand behind those before them
    pack.py       a bundle's tensors as the kernels read them
    device.py     the GPU: compiler, its cache, memory, launches
    coder.py      CudaCoder: sequences to frames and back

A lane is always one of a block's layout (lanes.py), and a block is always one of tokens. The GPU's own terms are
thread, warp and CTA (a block of threads).

Needs an NVIDIA GPU of compute capability 8.0 or later and the packages of the extra `pltz[cuda]`.
"""
