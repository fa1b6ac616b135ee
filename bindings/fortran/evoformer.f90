! evoformer.f90: the Fortran interface of libevoformer 0.1.0, written by bindings/fortran/generate.py from the C headers.
! Do not edit it: change the headers and run `python3 bindings/fortran/generate.py include > bindings/fortran/evoformer.f90`.
!
! Functions, constants and components have their C names; the headers (include/evoformer) and docs/ops.md say what they
! mean. What differs:
!
! - Index order. A tensor that C writes [B, N, N, c_z], the last index fastest, is z(c_z, N, N, B) here, the first index
!   fastest: the same memory, read from the other end. The comments on components below give shapes in Fortran's order.
!   A pair [i, j] of C is (:, j, i) in Fortran. `strides` keep C's order: strides(1) belongs to C's first index, which is
!   Fortran's last.
! - Weights. A matrix that C calls [out, in] is w(in, out) here. Whoever has w(out, in) says so by strides and copies
!   nothing: evo_weight(c_loc(w), EVO_FP32, [1_c_int64_t, size(w, 1, c_int64_t)]).
! - Structs start with their defaults (those of the _INIT macros), `size` among them: declare one and set what differs.
!   Inside a procedure do not initialise it in the declaration: that would make it `save`.
! - Strings that go in end with c_null_char. Strings that come out are pointers: evo_string() makes character of them.
! - Tensors are addresses of device memory, type(c_ptr): from evo_memory_alloc, or, on the device "cpu", c_loc(array) of
!   an array with the attribute target. Handles (context, plan, pack, stream, event, graph) are type(c_ptr) too;
!   c_null_ptr stands for C's NULL.
module evoformer
    use, intrinsic :: iso_c_binding
    implicit none
    public

    integer, parameter :: EVO_BUFFER_ALIGNMENT = 256
    integer, parameter :: EVO_VERSION_MAJOR = 0
    integer, parameter :: EVO_VERSION_MINOR = 1
    integer, parameter :: EVO_VERSION_PATCH = 0

    !> The result of a call. Values are stable: new ones are added at the end.
    enum, bind(c)
        enumerator :: EVO_OK = 0
        enumerator :: EVO_ERROR_INVALID_ARGUMENT = 1 !< an enumerator, number, name or struct size that has no meaning
        enumerator :: EVO_ERROR_NULL_POINTER = 2 !< a pointer that the call or the descriptor requires is NULL
        enumerator :: EVO_ERROR_INVALID_SHAPE = 3 !< a negative or inconsistent extent
        enumerator :: EVO_ERROR_INVALID_DTYPE = 4 !< a number type that this tensor cannot have
        enumerator :: EVO_ERROR_INVALID_LAYOUT = 5 !< strides that make an output overlap itself, or break an alias promise
        enumerator :: EVO_ERROR_MISALIGNED = 6 !< a pointer below the alignment that the descriptor promised
        enumerator :: EVO_ERROR_ALIASED = 7 !< memory overlaps where the descriptor does not allow it
        enumerator :: EVO_ERROR_SIZE_OVERFLOW = 8 !< a product of sizes does not fit in 64 bits
        enumerator :: EVO_ERROR_BUFFER_TOO_SMALL = 9 !< the workspace or pack memory is smaller than the plan's figure
        enumerator :: EVO_ERROR_WORKSPACE_LIMIT = 10 !< no kernel fits the descriptor's workspace_limit; the text says the least
        enumerator :: EVO_ERROR_PACK_MISMATCH = 11 !< the packed weights are of other channels, types, kernel or device
        enumerator :: EVO_ERROR_UNSUPPORTED = 12 !< no kernel of this device takes the descriptor; the text says each reason
        enumerator :: EVO_ERROR_NOT_COMPILED = 13 !< the backend is known but not in this build
        enumerator :: EVO_ERROR_NO_DEVICE = 14 !< no such device, or its driver is missing
        enumerator :: EVO_ERROR_OUT_OF_MEMORY = 15 !< host or device memory is exhausted
        enumerator :: EVO_ERROR_DEVICE = 16 !< the driver reported an error; the text has the driver's words
        enumerator :: EVO_ERROR_CAPTURE = 17 !< not allowed while, or only allowed while, a stream records a graph
        enumerator :: EVO_ERROR_INTERNAL = 18 !< a defect of the library: please report it
    end enum

    !> The ops of this library. Values are stable and dense: evo_op_name gives NULL from the first unused one on.
    enum, bind(c)
        enumerator :: EVO_OP_OPM = 0
        enumerator :: EVO_OP_TRIMUL = 1
    end enum

    !> One backend that the project knows, whether or not it is in this binary.
    type, bind(c) :: evo_backend_info
        !> sizeof(evo_backend_info)
        integer(c_size_t) :: size = 40_c_size_t
        !> "cpu", "cuda", "hip"
        type(c_ptr) :: name = c_null_ptr
        !> 1 if it is in this binary
        integer(c_int) :: compiled = 0
        !> devices that can be opened; 0 if not compiled or the driver is missing
        integer(c_int) :: device_count = 0
        !> why there is no device, in words; "" if there is one
        type(c_ptr) :: missing = c_null_ptr
        !> architectures that kernels were compiled for, separated by spaces; "" if none are needed
        type(c_ptr) :: images = c_null_ptr
    end type evo_backend_info
    integer, parameter, private :: backend_info_is_as_in_c = 1 / merge(1, 0, storage_size(evo_backend_info()) == 320)

    !> One device.
    type, bind(c) :: evo_device_info
        !> sizeof(evo_device_info)
        integer(c_size_t) :: size = 224_c_size_t
        !> what evo_context_create takes: "cpu", "cuda:0"
        character(kind=c_char) :: name(32) = c_null_char
        !> the vendor's words for it
        character(kind=c_char) :: description(128) = c_null_char
        !> "x86_64", "sm_90", "gfx942"
        character(kind=c_char) :: arch(32) = c_null_char
        !> CPUs that this process may use, multiprocessors, compute units
        integer(c_int) :: compute_units = 0
        !> lanes that run in step; 1 on a CPU
        integer(c_int) :: wave_size = 0
        !> bytes of its main memory; 0 if unknown
        integer(c_size_t) :: memory_size = 0_c_size_t
        !> bytes of on-chip memory that one block may use; 0 on a CPU
        integer(c_size_t) :: shared_memory_size = 0_c_size_t
    end type evo_device_info
    integer, parameter, private :: device_info_is_as_in_c = 1 / merge(1, 0, storage_size(evo_device_info()) == 1792)

    !> How a context behaves; evo_context_create takes NULL for all defaults.
    type, bind(c) :: evo_context_options
        !> sizeof(evo_context_options)
        integer(c_size_t) :: size = 32_c_size_t
        !> 0: the environment's EVO_VERBOSE, 1: a line per plan and execute, 2: with times (each execute then waits for
        !> its result and is refused under capture), -1: silent
        integer(c_int) :: verbose = 0
        !> takes the lines; NULL: standard error
        type(c_funptr) :: log = c_null_funptr
        !> handed to `log`
        type(c_ptr) :: log_user = c_null_ptr
    end type evo_context_options
    integer, parameter, private :: context_options_is_as_in_c = 1 / merge(1, 0, storage_size(evo_context_options()) == 256)

    !> Number type of a tensor as stored. EVO_NONE says that an optional tensor is absent.
    enum, bind(c)
        enumerator :: EVO_NONE = 0
        enumerator :: EVO_FP64 = 1
        enumerator :: EVO_FP32 = 2
        enumerator :: EVO_BF16 = 3 !< the upper half of an fp32: 8 exponent bits, 7 of fraction
        enumerator :: EVO_FP16 = 4 !< IEEE half precision
        enumerator :: EVO_UINT8 = 5 !< masks only; the value counts as a number (0 and 1 as a rule)
    end enum

    !> The least accuracy of the arithmetic: a kernel may compute better, never worse (docs/numerics.md has the
    !  bounds). Sums, LayerNorm statistics and counts are fp32 or better in every mode.
    enum, bind(c)
        enumerator :: EVO_COMPUTE_FP32 = 0 !< fp32 products, or 16-bit splits of the same accuracy
        enumerator :: EVO_COMPUTE_FP32_STRICT = 1 !< IEEE fp32 products only
        enumerator :: EVO_COMPUTE_TF32 = 2 !< tf32 products or better
        enumerator :: EVO_COMPUTE_BF16 = 3 !< bf16 products or better
        enumerator :: EVO_COMPUTE_FP16 = 4 !< fp16 products or better, finite wherever fp32 is
        enumerator :: EVO_COMPUTE_FP64 = 5 !< fp64 products and sums: the truth that all others are checked against
    end enum

    !> Which tensors the output may share memory with, or'ed together; else any overlap is refused at execute.
    enum, bind(c)
        enumerator :: EVO_ALIAS_NONE = 0
        enumerator :: EVO_ALIAS_INPUT = 1 !< out may be the input itself: same pointer, dtype and strides
        enumerator :: EVO_ALIAS_RESIDUAL = 2 !< out may be the residual itself: same pointer, dtype and strides
    end enum

    !> What a plan is for. Inference is the only value now; backward passes will add theirs.
    enum, bind(c)
        enumerator :: EVO_INFERENCE = 0
    end enum

    !> How one activation lies in memory. Extents come from the op's sizes; the pointer is given at execute. Strides
    !  are in elements, one an index from the slowest on (unused ones stay 0), and may be zero (an input that is
    !  repeated along that index) or negative; all zero means contiguous.
    type, bind(c) :: evo_tensor
        !> EVO_NONE: there is no such tensor
        integer(c_int) :: dtype = EVO_NONE
        !> in elements, of the slowest index first; all 0: contiguous
        integer(c_int64_t) :: strides(4) = 0
        !> bytes, a power of two that every pointer given at execute will keep; 0: 16 bytes
        integer(c_size_t) :: alignment = 0_c_size_t
    end type evo_tensor
    integer, parameter, private :: tensor_is_as_in_c = 1 / merge(1, 0, storage_size(evo_tensor()) == 384)

    !> A weight as the caller has it: a view, so that every published layout is taken without a copy. Element [out,
    !  in] of a matrix is at data[out * strides[0] + in * strides[1]]; element [i] of a vector (a bias, a LayerNorm
    !  weight) at data[i * strides[0]]. All strides zero means contiguous: (in, 1), or 1 for a vector. A matrix
    !  stored (in, out) is strides (1, out); a fused half is an offset of data; interleaved rows double a stride.
    type, bind(c) :: evo_weight
        !> memory of the context's device; NULL where the op has no such weight
        type(c_ptr) :: data = c_null_ptr
        !> EVO_FP64, EVO_FP32, EVO_BF16 or EVO_FP16, whatever the activations have
        integer(c_int) :: dtype = EVO_NONE
        !> in elements; all 0: contiguous
        integer(c_int64_t) :: strides(2) = 0
    end type evo_weight
    integer, parameter, private :: weight_is_as_in_c = 1 / merge(1, 0, storage_size(evo_weight()) == 256)

    !> What a plan will do.
    type, bind(c) :: evo_plan_info
        !> sizeof(evo_plan_info)
        integer(c_size_t) :: size = 64_c_size_t
        !> what it computes
        integer(c_int) :: op = EVO_OP_OPM
        !> what it computes in: at least what the descriptor asked for
        integer(c_int) :: compute = EVO_COMPUTE_FP32
        !> the kernel's name, with its order if it has several: a name of evo_context_kernel
        type(c_ptr) :: kernel = c_null_ptr
        !> bytes that execute needs
        integer(c_size_t) :: workspace_size = 0_c_size_t
        !> bytes that the packed weights need
        integer(c_size_t) :: pack_size = 0_c_size_t
        !> floating-point operations of the op's products, by the cheaper order of contraction
        real(c_double) :: flops = 0.0_c_double
        !> the fewest bytes that cross memory, each tensor once a pass (docs/ops.md)
        real(c_double) :: bytes = 0.0_c_double
        !> why each better kernel refused, a line each; "" if the best one runs
        type(c_ptr) :: refusals = c_null_ptr
    end type evo_plan_info
    integer, parameter, private :: plan_info_is_as_in_c = 1 / merge(1, 0, storage_size(evo_plan_info()) == 512)

    !> Where the mean's division stands; the two differ only in whether b_o is divided too.
    enum, bind(c)
        enumerator :: EVO_DIVIDE_BEFORE = 0
        enumerator :: EVO_DIVIDE_AFTER = 1
    end enum

    !> Which sides the mask multiplies. The count takes both sides' mask either way.
    enum, bind(c)
        enumerator :: EVO_MASK_BOTH = 0
        enumerator :: EVO_MASK_A_ONLY = 1
    end enum

    !> Biases that exist, or'ed together in the descriptor.
    enum, bind(c)
        enumerator :: EVO_OPM_BIAS_NORM = 1
        enumerator :: EVO_OPM_BIAS_A = 2
        enumerator :: EVO_OPM_BIAS_B = 4
        enumerator :: EVO_OPM_BIAS_OUT = 8
        enumerator :: EVO_OPM_BIAS_ALL = 15
    end enum

    !> All that an outer product mean's plan depends on. Start from EVO_OPM_DESC_INIT, which is variant "mean". m,
    !  residual and out may have any floating-point dtype, each its own.
    type, bind(c) :: evo_opm_desc
        !> sizeof(evo_opm_desc)
        integer(c_size_t) :: size = 320_c_size_t
        !> B; 0 is allowed: nothing is done
        integer(c_int64_t) :: batch = 1_c_int64_t
        !> S, sequences; 0 is allowed: the sum is empty, the count 0
        integer(c_int64_t) :: s = 0_c_int64_t
        !> N, residues; 0 is allowed: nothing is done
        integer(c_int64_t) :: n = 0_c_int64_t
        !> channels of the MSA, at least 1
        integer(c_int64_t) :: c_m = 0_c_int64_t
        !> hidden channels of a and b, at least 1
        integer(c_int64_t) :: c = 0_c_int64_t
        !> channels of the pair representation, at least 1
        integer(c_int64_t) :: c_z = 0_c_int64_t
        !> (c_m, N, S, B)
        type(evo_tensor) :: m = evo_tensor(EVO_FP32)
        !> (N, S, B), any dtype; EVO_NONE: all ones
        type(evo_tensor) :: mask = evo_tensor(EVO_NONE)
        !> (c_z, N, N, B); EVO_NONE: nothing is added
        type(evo_tensor) :: residual = evo_tensor(EVO_NONE)
        !> (c_z, N, N, B)
        type(evo_tensor) :: out = evo_tensor(EVO_FP32)
        !> EVO_OPM_BIAS_...
        integer(c_int) :: biases = EVO_OPM_BIAS_ALL
        !> EVO_ALIAS_NONE or EVO_ALIAS_RESIDUAL
        integer(c_int) :: alias = EVO_ALIAS_NONE
        !> before or after W_o
        integer(c_int) :: divide = EVO_DIVIDE_BEFORE
        !> which of a and b are masked
        integer(c_int) :: mask_sides = EVO_MASK_BOTH
        !> at least 0
        real(c_double) :: count_eps = 0.0_c_double
        !> at least 0
        real(c_double) :: count_min = 1.0_c_double
        !> at least 0; 1e-5 in every published model
        real(c_double) :: layer_norm_eps = 1e-5_c_double
        !> largest mask value to expect, without a mask unused: fp16 and tf32 stay finite up to 2^10 times it, and
        !> masks below 2^-7 of it (on MI200 2^-4) lose digits
        real(c_double) :: mask_max = 1.0_c_double
        !> the least accuracy
        integer(c_int) :: compute = EVO_COMPUTE_FP32
        !> EVO_INFERENCE
        integer(c_int) :: propagation = EVO_INFERENCE
        !> bytes; the plan takes a form that fits, or fails and says the least; 0: no limit
        integer(c_size_t) :: workspace_limit = 0_c_size_t
        !> forces a kernel by name; NULL: EVO_KERNEL, else the best that takes the descriptor
        type(c_ptr) :: kernel = c_null_ptr
    end type evo_opm_desc
    integer, parameter, private :: opm_desc_is_as_in_c = 1 / merge(1, 0, storage_size(evo_opm_desc()) == 2560)

    !> Weights as views, (out, in) by name; a bias that the descriptor lacks stays EVO_WEIGHT_INIT.
    type, bind(c) :: evo_opm_weights
        !> sizeof(evo_opm_weights)
        integer(c_size_t) :: size = 264_c_size_t
        !> (c_m)
        type(evo_weight) :: norm_weight
        !> (c_m)
        type(evo_weight) :: norm_bias
        !> (c_m, c)
        type(evo_weight) :: a_weight
        !> (c)
        type(evo_weight) :: a_bias
        !> (c_m, c)
        type(evo_weight) :: b_weight
        !> (c)
        type(evo_weight) :: b_bias
        !> (c * c, c_z), of c * c index c_a * c + c_b
        type(evo_weight) :: out_weight
        !> (c_z)
        type(evo_weight) :: out_bias
    end type evo_opm_weights
    integer, parameter, private :: opm_weights_is_as_in_c = 1 / merge(1, 0, storage_size(evo_opm_weights()) == 2112)

    !> The tensors of one execution: memory of the context's device, laid out as the descriptor says.
    type, bind(c) :: evo_opm_args
        !> sizeof(evo_opm_args)
        integer(c_size_t) :: size = 40_c_size_t
        !> (c_m, N, S, B); NULL is allowed where there are no elements, as for all of these
        type(c_ptr) :: m = c_null_ptr
        !> NULL if the descriptor has none
        type(c_ptr) :: mask = c_null_ptr
        !> NULL if the descriptor has none
        type(c_ptr) :: residual = c_null_ptr
        !> (c_z, N, N, B)
        type(c_ptr) :: out = c_null_ptr
    end type evo_opm_args
    integer, parameter, private :: opm_args_is_as_in_c = 1 / merge(1, 0, storage_size(evo_opm_args()) == 320)

    !> Which index is summed: t_ij = sum a_ik b_jk (outgoing) or sum a_ki b_kj (incoming).
    enum, bind(c)
        enumerator :: EVO_OUTGOING = 0
        enumerator :: EVO_INCOMING = 1
    end enum

    !> What the output gate reads: LayerNorm_in(z), as every published model does, or z itself.
    enum, bind(c)
        enumerator :: EVO_GATE_NORMED = 0
        enumerator :: EVO_GATE_RAW = 1
    end enum

    !> Biases that exist, or'ed together in the descriptor.
    enum, bind(c)
        enumerator :: EVO_TRIMUL_BIAS_NORM_IN = 1
        enumerator :: EVO_TRIMUL_BIAS_A_PROJ = 2
        enumerator :: EVO_TRIMUL_BIAS_A_GATE = 4
        enumerator :: EVO_TRIMUL_BIAS_B_PROJ = 8
        enumerator :: EVO_TRIMUL_BIAS_B_GATE = 16
        enumerator :: EVO_TRIMUL_BIAS_NORM_OUT = 32
        enumerator :: EVO_TRIMUL_BIAS_OUT = 64
        enumerator :: EVO_TRIMUL_BIAS_OUT_GATE = 128
        enumerator :: EVO_TRIMUL_BIAS_ALL = 255
    end enum

    !> All that a triangle multiplication's plan depends on. Start from EVO_TRIMUL_DESC_INIT: outgoing, "alphafold2".
    !  z, residual and out may have any floating-point dtype, each its own.
    type, bind(c) :: evo_trimul_desc
        !> sizeof(evo_trimul_desc)
        integer(c_size_t) :: size = 296_c_size_t
        !> B; 0 is allowed: nothing is done
        integer(c_int64_t) :: batch = 1_c_int64_t
        !> N, residues; 0 is allowed: nothing is done
        integer(c_int64_t) :: n = 0_c_int64_t
        !> channels of the pair representation, at least 1
        integer(c_int64_t) :: c_z = 0_c_int64_t
        !> hidden channels, at least 1
        integer(c_int64_t) :: c = 0_c_int64_t
        !> channels of the output; 0: c_z
        integer(c_int64_t) :: c_out = 0_c_int64_t
        !> (c_z, N, N, B)
        type(evo_tensor) :: z = evo_tensor(EVO_FP32)
        !> (N, N, B), any dtype; EVO_NONE: all ones
        type(evo_tensor) :: mask = evo_tensor(EVO_NONE)
        !> (c_out, N, N, B); EVO_NONE: nothing is added
        type(evo_tensor) :: residual = evo_tensor(EVO_NONE)
        !> (c_out, N, N, B)
        type(evo_tensor) :: out = evo_tensor(EVO_FP32)
        !> EVO_TRIMUL_BIAS_...
        integer(c_int) :: biases = EVO_TRIMUL_BIAS_ALL
        !> EVO_ALIAS_..., or'ed
        integer(c_int) :: alias = EVO_ALIAS_NONE
        !> which index is summed
        integer(c_int) :: direction = EVO_OUTGOING
        !> what the output gate reads
        integer(c_int) :: gate_input = EVO_GATE_NORMED
        !> of both LayerNorms, at least 0; 1e-5 in every published model
        real(c_double) :: layer_norm_eps = 1e-5_c_double
        !> largest mask value to expect, without a mask unused: fp16 and tf32 stay finite up to 2^10 times it, and
        !> masks below 2^-7 of it (on MI200 2^-4) lose digits
        real(c_double) :: mask_max = 1.0_c_double
        !> the least accuracy
        integer(c_int) :: compute = EVO_COMPUTE_FP32
        !> EVO_INFERENCE
        integer(c_int) :: propagation = EVO_INFERENCE
        !> bytes; the plan takes a form that fits, or fails and says the least; 0: no limit
        integer(c_size_t) :: workspace_limit = 0_c_size_t
        !> forces a kernel by name; NULL: EVO_KERNEL, else the best that takes the descriptor
        type(c_ptr) :: kernel = c_null_ptr
    end type evo_trimul_desc
    integer, parameter, private :: trimul_desc_is_as_in_c = 1 / merge(1, 0, storage_size(evo_trimul_desc()) == 2368)

    !> Weights as views, (out, in) by name; a bias that the descriptor lacks stays EVO_WEIGHT_INIT.
    type, bind(c) :: evo_trimul_weights
        !> sizeof(evo_trimul_weights)
        integer(c_size_t) :: size = 520_c_size_t
        !> (c_z)
        type(evo_weight) :: norm_in_weight
        !> (c_z)
        type(evo_weight) :: norm_in_bias
        !> (c_z, c)
        type(evo_weight) :: a_proj_weight
        !> (c)
        type(evo_weight) :: a_proj_bias
        !> (c_z, c)
        type(evo_weight) :: a_gate_weight
        !> (c)
        type(evo_weight) :: a_gate_bias
        !> (c_z, c)
        type(evo_weight) :: b_proj_weight
        !> (c)
        type(evo_weight) :: b_proj_bias
        !> (c_z, c)
        type(evo_weight) :: b_gate_weight
        !> (c)
        type(evo_weight) :: b_gate_bias
        !> (c)
        type(evo_weight) :: norm_out_weight
        !> (c)
        type(evo_weight) :: norm_out_bias
        !> (c, c_out)
        type(evo_weight) :: out_weight
        !> (c_out)
        type(evo_weight) :: out_bias
        !> (c_z, c_out)
        type(evo_weight) :: out_gate_weight
        !> (c_out)
        type(evo_weight) :: out_gate_bias
    end type evo_trimul_weights
    integer, parameter, private :: trimul_weights_is_as_in_c = 1 / merge(1, 0, storage_size(evo_trimul_weights()) == 4160)

    !> The tensors of one execution: memory of the context's device, laid out as the descriptor says.
    type, bind(c) :: evo_trimul_args
        !> sizeof(evo_trimul_args)
        integer(c_size_t) :: size = 40_c_size_t
        !> (c_z, N, N, B); NULL is allowed where there are no elements, as for all of these
        type(c_ptr) :: z = c_null_ptr
        !> NULL if the descriptor has none
        type(c_ptr) :: mask = c_null_ptr
        !> NULL if the descriptor has none; may equal z
        type(c_ptr) :: residual = c_null_ptr
        !> (c_out, N, N, B)
        type(c_ptr) :: out = c_null_ptr
    end type evo_trimul_args
    integer, parameter, private :: trimul_args_is_as_in_c = 1 / merge(1, 0, storage_size(evo_trimul_args()) == 320)

    abstract interface

        !> Takes one log line, without a newline; the line is gone when it returns. Called by the threads that create
        !  the context, plan and execute, by several at once if they do so at once.
        subroutine evo_log_function(user, line) bind(c)
            import
            type(c_ptr), value :: user
            type(c_ptr), value :: line
        end subroutine evo_log_function
    end interface

    interface

        !> The enumerator's name, such as "EVO_ERROR_MISALIGNED". Never NULL; unknown values give
        !  "EVO_ERROR_UNKNOWN".
        function evo_status_name(status) bind(c)
            import
            integer(c_int), value :: status
            type(c_ptr) :: evo_status_name
        end function evo_status_name

        !> What went wrong in this thread's most recent failed call: the argument, its value and what was expected.
        !  Never NULL; "" before the first failure. Valid until the next failing call of the same thread.
        function evo_last_error() bind(c)
            import
            type(c_ptr) :: evo_last_error
        end function evo_last_error

        !> "opm", "trimul"; NULL for values that are no op.
        function evo_op_name(op) bind(c)
            import
            integer(c_int), value :: op
            type(c_ptr) :: evo_op_name
        end function evo_op_name

        !> One line: version, commit (where it was built from a repository), compiler, options and backends of this
        !  binary.
        function evo_build_info() bind(c)
            import
            type(c_ptr) :: evo_build_info
        end function evo_build_info

        !> The version of the library that runs (the macros of version.h are those it was compiled against): "0.1.0".
        function evo_version() bind(c)
            import
            type(c_ptr) :: evo_version
        end function evo_version

        !> Describes backend number `index` (0, 1, ...). Strings stay valid until the calling thread's next call.
        !  Thread-safe.
        !  Returns EVO_ERROR_INVALID_ARGUMENT past the last one, without touching the last error's text;
        !  EVO_ERROR_NULL_POINTER
        function evo_backend_get(index, info) bind(c)
            import
            integer(c_int), value :: index
            type(evo_backend_info), intent(inout) :: info
            integer(c_int) :: evo_backend_get
        end function evo_backend_get

        !> Describes device number `index` over all backends in this binary, in the order that "auto" prefers.
        !  Thread-safe.
        !  Returns EVO_ERROR_INVALID_ARGUMENT past the last one, without touching the last error's text;
        !  EVO_ERROR_NULL_POINTER, EVO_ERROR_DEVICE
        function evo_device_get(index, info) bind(c)
            import
            integer(c_int), value :: index
            type(evo_device_info), intent(inout) :: info
            integer(c_int) :: evo_device_get
        end function evo_device_get

        !> Opens a device: "cpu", "cuda:0", "hip:1" (without a number: 0), or "auto", the first GPU that this binary
        !  has kernels for, else the CPU. What "auto" took is logged at verbosity 1, a GPU that it had to pass over
        !  at 0 too. A device that is named is never replaced by another. On the CPU the number of threads is
        !  EVO_NUM_THREADS, else what OpenMP would use; OpenMP's settings are never changed. In a fork of a process
        !  that has had a context the CPU computes with one thread, and GPUs are refused (docs/embedding.md).
        !  Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (no such name), EVO_ERROR_NOT_COMPILED,
        !  EVO_ERROR_NO_DEVICE, EVO_ERROR_OUT_OF_MEMORY, EVO_ERROR_DEVICE
        function evo_context_create(device, options, context) bind(c)
            import
            character(kind=c_char), intent(in) :: device(*)
            type(evo_context_options), intent(in), optional :: options
            type(c_ptr), intent(out) :: context
            integer(c_int) :: evo_context_create
        end function evo_context_create

        !> Lets go of the context; plans and packs made with it stay usable. NULL is allowed.
        subroutine evo_context_destroy(context) bind(c)
            import
            type(c_ptr), value :: context
        end subroutine evo_context_destroy

        !> Describes the context's device. Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT
        function evo_context_device(context, info) bind(c)
            import
            type(c_ptr), value :: context
            type(evo_device_info), intent(inout) :: info
            integer(c_int) :: evo_context_device
        end function evo_context_device

        !> The name of kernel number `index` of `op` on this context's device, best first; NULL past the last one. A
        !  kernel that can contract in several orders is followed by a name for each ("portable",
        !  "portable/outer-first", "portable/weight-first"). These are the names that a descriptor's `kernel` field
        !  and EVO_KERNEL=op:kernel,... take: the first leaves the order to the plan.
        function evo_context_kernel(context, op, index) bind(c)
            import
            type(c_ptr), value :: context
            integer(c_int), value :: op
            integer(c_int), value :: index
            type(c_ptr) :: evo_context_kernel
        end function evo_context_kernel

        !> Bytes of one element; 0 for EVO_NONE and values that are no dtype.
        function evo_dtype_size(dtype) bind(c)
            import
            integer(c_int), value :: dtype
            integer(c_size_t) :: evo_dtype_size
        end function evo_dtype_size

        !> "fp32", "bf16", ...; "none" for EVO_NONE, "invalid" for values that are no dtype.
        function evo_dtype_name(dtype) bind(c)
            import
            integer(c_int), value :: dtype
            type(c_ptr) :: evo_dtype_name
        end function evo_dtype_name

        !> "fp32", "fp32_strict", "tf32", ...; "invalid" for values that are no compute mode.
        function evo_compute_name(compute) bind(c)
            import
            integer(c_int), value :: compute
            type(c_ptr) :: evo_compute_name
        end function evo_compute_name

        !> Converts `count` contiguous host elements, rounding to nearest even (to EVO_UINT8: truncated and
        !  saturated, NaN to 0). For programs that have no 16-bit floating-point type of their own. The two buffers
        !  must not overlap.
        !  Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_DTYPE
        function evo_convert(source, source_dtype, target, target_dtype, count) bind(c)
            import
            type(c_ptr), value :: source
            integer(c_int), value :: source_dtype
            type(c_ptr), value :: target
            integer(c_int), value :: target_dtype
            integer(c_size_t), value :: count
            integer(c_int) :: evo_convert
        end function evo_convert

        !> Describes the plan; the strings live as long as it does. Returns EVO_ERROR_NULL_POINTER,
        !  EVO_ERROR_INVALID_ARGUMENT
        function evo_plan_get_info(plan, info) bind(c)
            import
            type(c_ptr), value :: plan
            type(evo_plan_info), intent(inout) :: info
            integer(c_int) :: evo_plan_get_info
        end function evo_plan_get_info

        !> Destroys the plan once no call uses it; work already in a stream goes on, but a graph that recorded the
        !  plan can be launched no more. NULL is allowed.
        subroutine evo_plan_destroy(plan) bind(c)
            import
            type(c_ptr), value :: plan
        end subroutine evo_plan_destroy

        !> Destroys the handle; the memory stays the caller's. NULL is allowed.
        subroutine evo_pack_destroy(pack) bind(c)
            import
            type(c_ptr), value :: pack
        end subroutine evo_pack_destroy

        !> Allocates device memory, aligned to 256 bytes. 0 bytes give NULL. Returns EVO_ERROR_OUT_OF_MEMORY
        function evo_memory_alloc(context, bytes, memory) bind(c)
            import
            type(c_ptr), value :: context
            integer(c_size_t), value :: bytes
            type(c_ptr), intent(out) :: memory
            integer(c_int) :: evo_memory_alloc
        end function evo_memory_alloc

        !> Frees what evo_memory_alloc gave, once no work uses it any more; NULL is allowed.
        function evo_memory_free(context, memory) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: memory
            integer(c_int) :: evo_memory_free
        end function evo_memory_free

        !> Copies bytes in stream order between any two of host and device; both must live, and hold what they
        !  should, until that is done. Returns EVO_ERROR_OUT_OF_MEMORY (recording on the CPU)
        function evo_memory_copy(context, target, source, bytes, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: target
            type(c_ptr), value :: source
            integer(c_size_t), value :: bytes
            type(c_ptr), value :: stream
            integer(c_int) :: evo_memory_copy
        end function evo_memory_copy

        !> Sets every byte of device memory to `value` (0 to 255), in stream order. Returns
        !  EVO_ERROR_INVALID_ARGUMENT, as a copy's
        function evo_memory_fill(context, target, value, bytes, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: target
            integer(c_int), value :: value
            integer(c_size_t), value :: bytes
            type(c_ptr), value :: stream
            integer(c_int) :: evo_memory_fill
        end function evo_memory_fill

        !> Makes a stream of the context's device. Returns EVO_ERROR_OUT_OF_MEMORY
        function evo_stream_create(context, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), intent(out) :: stream
            integer(c_int) :: evo_stream_create
        end function evo_stream_create

        !> Destroys a stream of evo_stream_create after its work is done; NULL is allowed.
        function evo_stream_destroy(context, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: stream
            integer(c_int) :: evo_stream_destroy
        end function evo_stream_destroy

        !> Returns when all work of the stream is done, with the error of any of it. Returns EVO_ERROR_CAPTURE if it
        !  records
        function evo_stream_synchronize(context, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: stream
            integer(c_int) :: evo_stream_synchronize
        end function evo_stream_synchronize

        !> Work given to the stream from now on starts after the event's last record.
        !  Returns EVO_ERROR_CAPTURE if that record is in a graph, unless this stream records it
        function evo_stream_wait_event(context, stream, event) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: stream
            type(c_ptr), value :: event
            integer(c_int) :: evo_stream_wait_event
        end function evo_stream_wait_event

        !> Makes an event, recorded nowhere yet. Returns EVO_ERROR_OUT_OF_MEMORY
        function evo_event_create(context, event) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), intent(out) :: event
            integer(c_int) :: evo_event_create
        end function evo_event_create

        !> Destroys an event of evo_event_create that no recorded graph uses; NULL is allowed.
        function evo_event_destroy(context, event) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: event
            integer(c_int) :: evo_event_destroy
        end function evo_event_destroy

        !> The event stands for all work given to the stream so far, and keeps the time when that is done.
        function evo_event_record(context, event, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: event
            type(c_ptr), value :: stream
            integer(c_int) :: evo_event_record
        end function evo_event_record

        !> Returns when the work before the event's last record is done; at once if it was never recorded.
        !  Returns EVO_ERROR_CAPTURE if that record is in a graph (on the CPU: that was not launched since)
        function evo_event_synchronize(context, event) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: event
            integer(c_int) :: evo_event_synchronize
        end function evo_event_synchronize

        !> Milliseconds between two recorded and completed events.
        !  Returns EVO_ERROR_INVALID_ARGUMENT if one is not recorded, EVO_ERROR_CAPTURE if its last record is in a
        !  graph, as above
        function evo_event_elapsed(context, start, stop, milliseconds) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: start
            type(c_ptr), value :: stop
            real(c_double), intent(out) :: milliseconds
            integer(c_int) :: evo_event_elapsed
        end function evo_event_elapsed

        !> From now on the stream (not the default one) records its work. Returns EVO_ERROR_CAPTURE if it already
        !  does
        function evo_graph_begin(context, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: stream
            integer(c_int) :: evo_graph_begin
        end function evo_graph_begin

        !> Ends the recording and makes it launchable. After a call that could not be recorded there is no graph, on
        !  the CPU always.
        !  Returns EVO_ERROR_CAPTURE if the stream does not record, EVO_ERROR_OUT_OF_MEMORY
        function evo_graph_end(context, stream, graph) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: stream
            type(c_ptr), intent(out) :: graph
            integer(c_int) :: evo_graph_end
        end function evo_graph_end

        !> Runs the recorded work once, in stream order. All that it uses must still be alive: tensors, workspace,
        !  pack memory, events, and the plans (not the pack handles).
        function evo_graph_launch(context, graph, stream) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: graph
            type(c_ptr), value :: stream
            integer(c_int) :: evo_graph_launch
        end function evo_graph_launch

        !> Destroys a graph that no stream is running; NULL is allowed.
        function evo_graph_destroy(context, graph) bind(c)
            import
            type(c_ptr), value :: context
            type(c_ptr), value :: graph
            integer(c_int) :: evo_graph_destroy
        end function evo_graph_destroy

        !> Sets what a published model fixes (biases, divide, mask_sides, count_eps, count_min) and leaves the rest.
        !  Names: "alphafold2" (OpenFold, FastFold), "alphafold3" (OpenFold-3, Protenix), "boltz", "helixfold",
        !  "megafold", "mean".
        !  Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (the text lists the names)
        function evo_opm_set_variant(desc, variant) bind(c)
            import
            type(evo_opm_desc), intent(inout) :: desc
            character(kind=c_char), intent(in) :: variant(*)
            integer(c_int) :: evo_opm_set_variant
        end function evo_opm_set_variant

        !> The name of variant number `index`; NULL past the last one.
        function evo_opm_variant(index) bind(c)
            import
            integer(c_int), value :: index
            type(c_ptr) :: evo_opm_variant
        end function evo_opm_variant

        !> Plans an outer product mean. Thread-safe. The first plan of a kind may load kernels and take long.
        !  Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT, EVO_ERROR_INVALID_SHAPE,
        !  EVO_ERROR_INVALID_DTYPE, EVO_ERROR_INVALID_LAYOUT, EVO_ERROR_SIZE_OVERFLOW, EVO_ERROR_WORKSPACE_LIMIT,
        !  EVO_ERROR_UNSUPPORTED, EVO_ERROR_OUT_OF_MEMORY, EVO_ERROR_DEVICE
        function evo_opm_plan_create(context, desc, plan) bind(c)
            import
            type(c_ptr), value :: context
            type(evo_opm_desc), intent(in) :: desc
            type(c_ptr), intent(out) :: plan
            integer(c_int) :: evo_opm_plan_create
        end function evo_opm_plan_create

        !> Packs the weights into `memory` (the plan's pack_size bytes at EVO_BUFFER_ALIGNMENT) in stream order.
        !  `memory` and the views must live until that is done; after it only `memory` must.
        !  Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (a bias the descriptor lacks),
        !  EVO_ERROR_INVALID_DTYPE, EVO_ERROR_INVALID_LAYOUT, EVO_ERROR_SIZE_OVERFLOW, EVO_ERROR_BUFFER_TOO_SMALL,
        !  EVO_ERROR_MISALIGNED, EVO_ERROR_ALIASED (memory lies over a weight), EVO_ERROR_OUT_OF_MEMORY,
        !  EVO_ERROR_DEVICE
        function evo_opm_pack_weights(plan, weights, memory, memory_size, stream, pack) bind(c)
            import
            type(c_ptr), value :: plan
            type(evo_opm_weights), intent(in) :: weights
            type(c_ptr), value :: memory
            integer(c_size_t), value :: memory_size
            type(c_ptr), value :: stream
            type(c_ptr), intent(out) :: pack
            integer(c_int) :: evo_opm_pack_weights
        end function evo_opm_pack_weights

        !> Computes one outer product mean in stream order. Allocates nothing and waits for nothing (while a stream
        !  records a graph, the record itself is allocated); thread-safe with a workspace (EVO_BUFFER_ALIGNMENT) and
        !  stream a thread. The workspace's contents mean nothing before and after. A call that is refused writes
        !  nothing.
        !  Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (another op's plan, a tensor that the
        !  descriptor lacks), EVO_ERROR_MISALIGNED, EVO_ERROR_ALIASED, EVO_ERROR_BUFFER_TOO_SMALL,
        !  EVO_ERROR_PACK_MISMATCH, EVO_ERROR_CAPTURE (as with verbosity 2), EVO_ERROR_OUT_OF_MEMORY (recording on
        !  the CPU), EVO_ERROR_DEVICE
        function evo_opm_execute(plan, pack, args, workspace, workspace_size, stream) bind(c)
            import
            type(c_ptr), value :: plan
            type(c_ptr), value :: pack
            type(evo_opm_args), intent(in) :: args
            type(c_ptr), value :: workspace
            integer(c_size_t), value :: workspace_size
            type(c_ptr), value :: stream
            integer(c_int) :: evo_opm_execute
        end function evo_opm_execute

        !> Sets what a published model fixes (biases, gate_input) and leaves the rest, the direction among it. Names:
        !  "alphafold2", "helixfold" (all biases), "alphafold3", "boltz" (only those of the LayerNorms), "megafold"
        !  (all but the output projection's), "mean" (all, and the gate reads z).
        !  Returns EVO_ERROR_NULL_POINTER, EVO_ERROR_INVALID_ARGUMENT (the text lists the names)
        function evo_trimul_set_variant(desc, variant) bind(c)
            import
            type(evo_trimul_desc), intent(inout) :: desc
            character(kind=c_char), intent(in) :: variant(*)
            integer(c_int) :: evo_trimul_set_variant
        end function evo_trimul_set_variant

        !> The name of variant number `index`; NULL past the last one.
        function evo_trimul_variant(index) bind(c)
            import
            integer(c_int), value :: index
            type(c_ptr) :: evo_trimul_variant
        end function evo_trimul_variant

        !> Plans a triangle multiplication; all that evo_opm_plan_create says holds.
        function evo_trimul_plan_create(context, desc, plan) bind(c)
            import
            type(c_ptr), value :: context
            type(evo_trimul_desc), intent(in) :: desc
            type(c_ptr), intent(out) :: plan
            integer(c_int) :: evo_trimul_plan_create
        end function evo_trimul_plan_create

        !> Packs the weights into `memory`; all that evo_opm_pack_weights says holds.
        function evo_trimul_pack_weights(plan, weights, memory, memory_size, stream, pack) bind(c)
            import
            type(c_ptr), value :: plan
            type(evo_trimul_weights), intent(in) :: weights
            type(c_ptr), value :: memory
            integer(c_size_t), value :: memory_size
            type(c_ptr), value :: stream
            type(c_ptr), intent(out) :: pack
            integer(c_int) :: evo_trimul_pack_weights
        end function evo_trimul_pack_weights

        !> Computes one triangle multiplication in stream order; all that evo_opm_execute says holds.
        function evo_trimul_execute(plan, pack, args, workspace, workspace_size, stream) bind(c)
            import
            type(c_ptr), value :: plan
            type(c_ptr), value :: pack
            type(evo_trimul_args), intent(in) :: args
            type(c_ptr), value :: workspace
            integer(c_size_t), value :: workspace_size
            type(c_ptr), value :: stream
            integer(c_int) :: evo_trimul_execute
        end function evo_trimul_execute
    end interface

contains

    !> The text of a C string, such as evo_last_error(); "" for NULL.
    function evo_string(address) result(text)
        type(c_ptr), intent(in) :: address
        character(:), allocatable :: text
        character(kind=c_char), pointer :: letters(:)
        integer :: length, i
        interface
            pure function strlen(s) bind(c)
                import
                type(c_ptr), value :: s
                integer(c_size_t) :: strlen
            end function strlen
        end interface

        length = 0
        if (c_associated(address)) length = int(strlen(address))
        allocate(character(length) :: text)
        if (length > 0) then
            call c_f_pointer(address, letters, [length])
            do i = 1, length
                text(i:i) = letters(i)
            end do
        end if
    end function evo_string

end module evoformer
