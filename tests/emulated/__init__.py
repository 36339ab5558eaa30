"""An accelerator in pure Python, and the tests that run `wmr` on it. It needs no GPU.

`device.py` registers the device `emu` with torch. Its tensors hold their values in tensors of the
CPU, which compute them. `runtime.py` lets Lightning Fabric use the device.

What is emulated:

* The rules of devices. An operation on tensors of both devices raises, and so does `.numpy()`.
  A scalar of the CPU may be an operand, and an index of the CPU is copied, as on CUDA.
* Waits of the host: `item`, comparisons in `if`, copies to the host, copies from memory that is not
  pinned, and operations whose output has a size that depends on values, such as `nonzero`.
* Copies that do not block. Their target holds NaN, or the largest integer, until an event that was
  recorded after them has been waited for.
* The number of kernels that CUDA would launch: one per operation. Views and allocations launch
  none. A backward pass of a convolution launches one per gradient. Foreach and fused operations
  launch one kernel per block of tensors, by the limits of `multi_tensor_apply` in torch.
* Bytes copied from the host to the device.
* Autocast, with its cache of rounded weights, and gradient scaling in half precision.
* A device without float64 and asynchronous copies, as MPS is: `emulation(like_mps=True)`.

Each event has the file and line of `wmr_cli` that caused it.

What is not emulated: the time and the rounding of real kernels, TF32, the algorithms of cuDNN,
streams other than the default one, CUDA graphs, compilation, limits of memory, and several devices
(NCCL, DDP). An operation that CUDA implements with several kernels counts as one.
The tests in `tests/gpu` need a real accelerator.

The device changes the global state of torch. Its tests therefore have a process of their own:
`make test-emulated`. Importing these modules registers nothing.
"""
