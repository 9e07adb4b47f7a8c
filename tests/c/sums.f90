! Sums, copies and messages from Fortran, on each rank of a job.
program sums
  use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
  use tutti
  implicit none
  type(tutti_comm) :: comm
  real(real32), target :: singles(3)
  real(real64), target :: doubles(2, 5)
  integer(int32), target :: numbers(1)
  integer(int64), target :: large(1)
  integer(int32), allocatable, target :: all(:)
  integer :: rank, world, r, source

  call check(tutti_init(comm))
  rank = tutti_rank(comm)
  world = tutti_world(comm)
  singles = real(rank + 1, real32)
  call check(tutti_all_reduce(comm, tutti_values(singles), TUTTI_SUM))
  if (any(singles /= real(world * (world + 1) / 2, real32))) error stop 'a sum of single precision'
  doubles = rank + 1
  call check(tutti_all_reduce(comm, tutti_values(doubles), TUTTI_AVERAGE))
  if (any(doubles /= (world + 1) / 2.0_real64)) error stop 'an average of double precision'
  large = 2_int64**40 * (rank + 1)
  call check(tutti_all_reduce(comm, tutti_values(large), TUTTI_MAX))
  if (large(1) /= 2_int64**40 * world) error stop 'a maximum of integers'
  numbers = rank
  call check(tutti_broadcast(comm, tutti_values(numbers), world - 1))
  if (numbers(1) /= world - 1) error stop 'a broadcast'
  allocate (all(world))
  numbers = rank
  call check(tutti_all_gather(comm, tutti_values(numbers), tutti_values(all)))
  do r = 1, world
    if (all(r) /= r - 1) error stop 'an all_gather'
  end do
  if (rank > 0) then
    call check(tutti_send(comm, tutti_values(numbers), 0, tag=5))
  else
    do r = 1, world - 1
      call check(tutti_recv(comm, tutti_values(numbers), TUTTI_ANY_RANK, tag=5, source=source))
      if (numbers(1) /= source) error stop 'a message'
    end do
  end if
  if (tutti_broadcast(comm, tutti_values(numbers), 99) /= TUTTI_INVALID_ARGUMENT) error stop 'a rank that is not there'
  if (index(tutti_error_text(), 'there is no rank 99') == 0) error stop 'a text of an error'
  call check(tutti_barrier(comm))
  call tutti_free(comm)
  print '(a)', 'all is well'

contains

  subroutine check(status)
    integer, intent(in) :: status
    if (status == TUTTI_OK) return
    print '(a)', tutti_error_text()
    error stop 1
  end subroutine

end program
