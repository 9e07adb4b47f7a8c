! The C interface (tutti.h) for Fortran. Arrays of any rank, of integers and reals of 32 or 64 bits, are given as
! tutti_values(array); they have to be targets and contiguous. Ranks and roots count from 0. Functions return a status: TUTTI_OK, or another one whose reason is tutti_error_text().
!
!   type(tutti_comm) :: comm
!   if (tutti_init(comm) /= TUTTI_OK) error stop 'no ranks'
!   if (tutti_all_reduce(comm, tutti_values(values), TUTTI_SUM) /= TUTTI_OK) error stop 'no sum'
!   call tutti_free(comm)
module tutti
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  implicit none
  private

  public :: tutti_init, tutti_free, tutti_rank, tutti_world, tutti_barrier, tutti_error_text
  public :: tutti_values, tutti_all_reduce, tutti_broadcast, tutti_all_gather, tutti_send, tutti_recv

  integer, parameter, public :: TUTTI_OK = 0, TUTTI_INVALID_ARGUMENT = 1, TUTTI_PEER_LOST = 2, TUTTI_TIMEOUT = 3
  integer, parameter, public :: TUTTI_SUM = 0, TUTTI_AVERAGE = 1, TUTTI_MIN = 2, TUTTI_MAX = 3, TUTTI_PRODUCT = 4
  integer, parameter, public :: TUTTI_BAND = 5, TUTTI_BOR = 6, TUTTI_BXOR = 7
  integer, parameter, public :: TUTTI_ANY_RANK = -1

  type, public :: tutti_comm
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! The numbers of tutti_type.
  integer(c_int), parameter :: kInt32 = 3, kInt64 = 4, kFloat32 = 6, kFloat64 = 7

  ! An array, as long as that exists.
  type, public :: tutti_array
    private
    type(c_ptr) :: place
    integer(c_size_t) :: count
    integer(c_int) :: kind
  end type

  interface tutti_values
    module procedure of_int32, of_int64, of_real32, of_real64
  end interface

  interface
    integer(c_int) function c_init(options, comm) bind(c, name='tutti_init')
      import
      type(c_ptr), value :: options
      type(c_ptr), intent(out) :: comm
    end function
    subroutine c_free(comm) bind(c, name='tutti_free')
      import
      type(c_ptr), value :: comm
    end subroutine
    integer(c_int) function c_rank(comm) bind(c, name='tutti_rank')
      import
      type(c_ptr), value :: comm
    end function
    integer(c_int) function c_world(comm) bind(c, name='tutti_world')
      import
      type(c_ptr), value :: comm
    end function
    integer(c_int) function c_barrier(comm, options) bind(c, name='tutti_barrier')
      import
      type(c_ptr), value :: comm, options
    end function
    type(c_ptr) function c_error_text() bind(c, name='tutti_error_text')
      import
    end function
    integer(c_int) function c_all_reduce(comm, input, output, count, kind, op, options) bind(c, name='tutti_all_reduce')
      import
      type(c_ptr), value :: comm, input, output, options
      integer(c_size_t), value :: count
      integer(c_int), value :: kind, op
    end function
    integer(c_int) function c_broadcast(comm, values, count, kind, root, options) bind(c, name='tutti_broadcast')
      import
      type(c_ptr), value :: comm, values, options
      integer(c_size_t), value :: count
      integer(c_int), value :: kind, root
    end function
    integer(c_int) function c_all_gather(comm, input, output, count, kind, options) bind(c, name='tutti_all_gather')
      import
      type(c_ptr), value :: comm, input, output, options
      integer(c_size_t), value :: count
      integer(c_int), value :: kind
    end function
    integer(c_int) function c_send(comm, values, count, kind, to, tag, options) bind(c, name='tutti_send')
      import
      type(c_ptr), value :: comm, values, options
      integer(c_size_t), value :: count
      integer(c_int), value :: kind, to, tag
    end function
    integer(c_int) function c_recv(comm, values, count, kind, from, tag, source, options) bind(c, name='tutti_recv')
      import
      type(c_ptr), value :: comm, values, source, options
      integer(c_size_t), value :: count
      integer(c_int), value :: kind, from, tag
    end function
    integer(c_size_t) function c_strlen(text) bind(c, name='strlen')
      import
      type(c_ptr), value :: text
    end function
  end interface

contains

  integer function tutti_init(comm)
    type(tutti_comm), intent(out) :: comm
    tutti_init = c_init(c_null_ptr, comm%handle)
  end function

  subroutine tutti_free(comm)
    type(tutti_comm), intent(inout) :: comm
    call c_free(comm%handle)
    comm%handle = c_null_ptr
  end subroutine

  integer function tutti_rank(comm)
    type(tutti_comm), intent(in) :: comm
    tutti_rank = c_rank(comm%handle)
  end function

  integer function tutti_world(comm)
    type(tutti_comm), intent(in) :: comm
    tutti_world = c_world(comm%handle)
  end function

  integer function tutti_barrier(comm)
    type(tutti_comm), intent(in) :: comm
    tutti_barrier = c_barrier(comm%handle, c_null_ptr)
  end function

  function tutti_error_text() result(text)
    character(:), allocatable :: text
    character(c_char), pointer :: letters(:)
    type(c_ptr) :: place
    integer :: i, size
    place = c_error_text()
    size = int(c_strlen(place))
    call c_f_pointer(place, letters, [size])
    allocate (character(size) :: text)
    do i = 1, size
      text(i:i) = letters(i)
    end do
  end function

  type(tutti_array) function of_int32(values)
    integer(int32), target, contiguous, intent(in) :: values(..)
    of_int32 = tutti_array(c_loc(values), size(values, kind=c_size_t), kInt32)
  end function

  type(tutti_array) function of_int64(values)
    integer(int64), target, contiguous, intent(in) :: values(..)
    of_int64 = tutti_array(c_loc(values), size(values, kind=c_size_t), kInt64)
  end function

  type(tutti_array) function of_real32(values)
    real(real32), target, contiguous, intent(in) :: values(..)
    of_real32 = tutti_array(c_loc(values), size(values, kind=c_size_t), kFloat32)
  end function

  type(tutti_array) function of_real64(values)
    real(real64), target, contiguous, intent(in) :: values(..)
    of_real64 = tutti_array(c_loc(values), size(values, kind=c_size_t), kFloat64)
  end function

  ! Replaces the values by those of all ranks together.
  integer function tutti_all_reduce(comm, values, op)
    type(tutti_comm), intent(in) :: comm
    type(tutti_array), intent(in) :: values
    integer, intent(in) :: op
    tutti_all_reduce = c_all_reduce(comm%handle, values%place, values%place, values%count, values%kind, &
                                    int(op, c_int), c_null_ptr)
  end function

  ! Replaces the values by those of the root.
  integer function tutti_broadcast(comm, values, root)
    type(tutti_comm), intent(in) :: comm
    type(tutti_array), intent(in) :: values
    integer, intent(in) :: root
    tutti_broadcast = c_broadcast(comm%handle, values%place, values%count, values%kind, int(root, c_int), c_null_ptr)
  end function

  ! Writes the values of all ranks to `all`, one after the other.
  integer function tutti_all_gather(comm, values, all)
    type(tutti_comm), intent(in) :: comm
    type(tutti_array), intent(in) :: values, all
    tutti_all_gather = TUTTI_INVALID_ARGUMENT
    if (all%count /= values%count * tutti_world(comm) .or. all%kind /= values%kind) return
    tutti_all_gather = c_all_gather(comm%handle, values%place, all%place, values%count, values%kind, c_null_ptr)
  end function

  integer function tutti_send(comm, values, to, tag)
    type(tutti_comm), intent(in) :: comm
    type(tutti_array), intent(in) :: values
    integer, intent(in) :: to
    integer, intent(in), optional :: tag
    tutti_send = c_send(comm%handle, values%place, values%count, values%kind, int(to, c_int), tag_of(tag), c_null_ptr)
  end function

  ! `source` gets the rank of the sender.
  integer function tutti_recv(comm, values, from, tag, source)
    type(tutti_comm), intent(in) :: comm
    type(tutti_array), intent(in) :: values
    integer, intent(in) :: from
    integer, intent(in), optional :: tag
    integer, intent(out), optional :: source
    integer(c_int), target :: sender
    tutti_recv = c_recv(comm%handle, values%place, values%count, values%kind, int(from, c_int), tag_of(tag), &
                        c_loc(sender), c_null_ptr)
    if (present(source)) source = sender
  end function

  integer(c_int) function tag_of(tag)
    integer, intent(in), optional :: tag
    tag_of = 0
    if (present(tag)) tag_of = int(tag, c_int)
  end function

end module
