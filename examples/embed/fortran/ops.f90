! ops.f90: one outer product mean and one triangle multiplication with libevoformer, in Fortran.
! usage: ops                on numbers that are made up
!        ops CASE RESULT    on the sizes and arrays of a file; the two outputs go to another
!
! Fortran's first index is the fastest: what C writes [B, N, N, c_z] is (c_z, N, N, B) here, the same memory.
program ops
    use evoformer
    use, intrinsic :: iso_fortran_env, only: error_unit
    implicit none
    integer :: made_up = 0, input = 0, output = 0 ! units; 0 without arguments
    type(c_ptr) :: context
    type(c_ptr) :: owned(32) ! memory of one op
    integer :: owned_count = 0
    character(4096) :: path

    if (command_argument_count() == 2) then
        call get_command_argument(1, path)
        open(newunit=input, file=trim(path), access='stream', form='unformatted', status='old', action='read')
        call get_command_argument(2, path)
        open(newunit=output, file=trim(path), access='stream', form='unformatted', status='replace', action='write')
    end if
    ! "auto": a GPU that the library has kernels for, else the CPU. C's NULL options: the argument is left out.
    call try(evo_context_create('auto' // c_null_char, context=context))
    call outer_product_mean()
    call triangle_multiplication()
    call evo_context_destroy(context)

contains

    subroutine try(status)
        integer(c_int), intent(in) :: status

        if (status == EVO_OK) return
        write(error_unit, '(4a)') 'ops: ', evo_string(evo_status_name(status)), ': ', evo_string(evo_last_error())
        error stop
    end subroutine try

    function device_memory(bytes) result(memory)
        integer(c_size_t), intent(in) :: bytes
        type(c_ptr) :: memory

        call try(evo_memory_alloc(context, bytes, memory))
        owned_count = owned_count + 1
        owned(owned_count) = memory
    end function device_memory

    subroutine release()
        do while (owned_count > 0)
            call try(evo_memory_free(context, owned(owned_count)))
            owned_count = owned_count - 1
        end do
    end subroutine release

    ! A copy of host numbers in memory of the device. (On the device "cpu" c_loc(host) itself would do.)
    function upload(host) result(memory)
        real(c_float), intent(in), target, contiguous :: host(:)
        type(c_ptr) :: memory

        memory = device_memory(4 * size(host, kind=c_size_t))
        call try(evo_memory_copy(context, memory, c_loc(host), 4 * size(host, kind=c_size_t), c_null_ptr))
        call try(evo_stream_synchronize(context, c_null_ptr)) ! the copy is done: the host's memory may go
    end function upload

    ! The next numbers of the file, or numbers that are made up.
    function numbers(count) result(host)
        integer(c_int64_t), intent(in) :: count
        real(c_float), allocatable :: host(:)
        integer :: i

        host = [(0.5 + 0.5 * sin(real(made_up + i - 1, c_float)), i = 1, int(count))]
        made_up = made_up + int(count)
        if (input /= 0) read(input) host
    end function numbers

    function array(count) result(memory)
        integer(c_int64_t), intent(in) :: count
        type(c_ptr) :: memory

        memory = upload(numbers(count))
    end function array

    ! A vector, or a matrix w(in, out), which is what C calls [out, in].
    function weight(count) result(view)
        integer(c_int64_t), intent(in) :: count
        type(evo_weight) :: view

        view = evo_weight(array(count), EVO_FP32)
    end function weight

    ! A matrix that the program keeps as w(out, in), as Fortran's matmul wants it: strides say so, nothing is reordered.
    function weight_out_in(outputs, inputs) result(view)
        integer(c_int64_t), intent(in) :: outputs, inputs
        type(evo_weight) :: view
        real(c_float), allocatable :: w(:, :)

        allocate(w(outputs, inputs))
        w = transpose(reshape(numbers(outputs * inputs), [inputs, outputs]))
        view = evo_weight(upload(reshape(w, [size(w)])), EVO_FP32, [1_c_int64_t, outputs])
    end function weight_out_in

    ! Waits for the result, shows its first number, and writes all to the output.
    subroutine download(info, memory, n, c_z, b)
        type(evo_plan_info), intent(in) :: info
        type(c_ptr), intent(in) :: memory
        integer(c_int64_t), intent(in) :: n, c_z, b
        real(c_float), allocatable, target :: z(:, :, :, :)

        allocate(z(c_z, n, n, b)) ! pair (i, j) of C is z(:, j, i, :)
        call try(evo_memory_copy(context, c_loc(z), memory, 4 * size(z, kind=c_size_t), c_null_ptr))
        call try(evo_stream_synchronize(context, c_null_ptr))
        print '(4a, i0, a, g0)', evo_string(evo_op_name(info%op)), ' with kernel ', evo_string(info%kernel), ': ', &
            size(z), ' numbers, the first is ', z(1, 1, 1, 1)
        if (output /= 0) write(output) z
    end subroutine download

    subroutine outer_product_mean()
        integer(c_int64_t) :: b = 1, s = 64, n = 32, c_m = 32, c = 16, c_z = 24
        type(evo_opm_desc) :: desc ! starts with C's EVO_OPM_DESC_INIT
        type(evo_opm_weights) :: weights
        type(evo_opm_args) :: args
        type(evo_plan_info) :: info
        type(c_ptr) :: plan, pack, pack_memory, workspace

        if (input /= 0) read(input) b, s, n, c_m, c, c_z
        desc%batch = b
        desc%s = s
        desc%n = n
        desc%c_m = c_m
        desc%c = c
        desc%c_z = c_z
        desc%mask%dtype = EVO_FP32 ! m and out are EVO_FP32 unless told otherwise
        call try(evo_opm_set_variant(desc, 'alphafold2' // c_null_char))
        call try(evo_opm_plan_create(context, desc, plan))
        call try(evo_plan_get_info(plan, info))

        args%m = array(c_m * n * s * b)  ! (c_m, N, S, B)
        args%mask = array(n * s * b)     ! (N, S, B)
        args%out = device_memory(4 * c_z * n * n * b)
        weights%norm_weight = weight(c_m)
        weights%norm_bias = weight(c_m)
        weights%a_weight = weight(c_m * c)
        weights%a_bias = weight(c)
        weights%b_weight = weight(c_m * c)
        weights%b_bias = weight(c)
        weights%out_weight = weight_out_in(c_z, c * c)
        weights%out_bias = weight(c_z)

        pack_memory = device_memory(info%pack_size)
        workspace = device_memory(info%workspace_size)
        ! A pack serves every plan with these channels and this kernel, whatever its N and S.
        call try(evo_opm_pack_weights(plan, weights, pack_memory, info%pack_size, c_null_ptr, pack))
        call try(evo_opm_execute(plan, pack, args, workspace, info%workspace_size, c_null_ptr))
        call download(info, args%out, n, c_z, b)
        call evo_pack_destroy(pack)
        call evo_plan_destroy(plan)
        call release()
    end subroutine outer_product_mean

    subroutine triangle_multiplication()
        integer(c_int64_t) :: b = 1, n = 32, c_z = 24, c = 16, direction = EVO_OUTGOING
        type(evo_trimul_desc) :: desc ! variant "alphafold2"
        type(evo_trimul_weights) :: weights
        type(evo_trimul_args) :: args
        type(evo_plan_info) :: info
        type(c_ptr) :: plan, pack, pack_memory, workspace

        if (input /= 0) read(input) b, n, c_z, c, direction
        desc%batch = b
        desc%n = n
        desc%c_z = c_z
        desc%c = c
        desc%direction = int(direction, c_int)
        desc%mask%dtype = EVO_FP32
        call try(evo_trimul_plan_create(context, desc, plan))
        call try(evo_plan_get_info(plan, info))

        args%z = array(c_z * n * n * b)  ! (c_z, N, N, B)
        args%mask = array(n * n * b)     ! (N, N, B)
        args%out = device_memory(4 * c_z * n * n * b)
        weights%norm_in_weight = weight(c_z)
        weights%norm_in_bias = weight(c_z)
        weights%a_proj_weight = weight(c_z * c)
        weights%a_proj_bias = weight(c)
        weights%a_gate_weight = weight(c_z * c)
        weights%a_gate_bias = weight(c)
        weights%b_proj_weight = weight(c_z * c)
        weights%b_proj_bias = weight(c)
        weights%b_gate_weight = weight(c_z * c)
        weights%b_gate_bias = weight(c)
        weights%norm_out_weight = weight(c)
        weights%norm_out_bias = weight(c)
        weights%out_weight = weight_out_in(c_z, c)
        weights%out_bias = weight(c_z)
        weights%out_gate_weight = weight(c_z * c_z)
        weights%out_gate_bias = weight(c_z)

        pack_memory = device_memory(info%pack_size)
        workspace = device_memory(info%workspace_size)
        call try(evo_trimul_pack_weights(plan, weights, pack_memory, info%pack_size, c_null_ptr, pack))
        call try(evo_trimul_execute(plan, pack, args, workspace, info%workspace_size, c_null_ptr))
        call download(info, args%out, n, c_z, b)
        call evo_pack_destroy(pack)
        call evo_plan_destroy(plan)
        call release()
    end subroutine triangle_multiplication

end program ops
