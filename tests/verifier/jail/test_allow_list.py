"""The filter as a program: what it answers to calls, by an interpreter of its instructions."""

import errno
import struct

import pytest

from services.verifier.jail import allow_list

X86, ARM = allow_list.MACHINES
ALLOWED = "allowed"
SIGKILL, SIGTERM = 9, 15


def answer(program: bytes, number: int, *arguments: int, arch: int = 0xC000003E) -> str | int:
    """Return the answer of a filter to a call: ALLOWED, or the error."""
    data = struct.pack("<iI", number, arch) + bytes(8)
    data += b"".join(struct.pack("<Q", value & (1 << 64) - 1) for value in arguments)
    data += bytes(64 - len(data))
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}
            at += if_true if holds[code] else if_false


@pytest.fixture(params=[False, True], ids=["alone", "with processes"])
def processes(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def of(processes: bool, machine: str = X86) -> bytes:
    return allow_list.of_process(allow_list.program(machine, processes=processes), 77)


def test_what_python_needs_is_allowed(processes: bool) -> None:
    program = of(processes)
    for calls in (allow_list.MEMORY, allow_list.FILES, allow_list.WAITS, allow_list.OWN):
        for name, (number, _) in calls.items():
            assert answer(program, number) == ALLOWED, name


def test_all_else_is_refused(processes: bool) -> None:
    program = of(processes)
    listed = {
        number
        for calls in (allow_list.MEMORY, allow_list.FILES, allow_list.WAITS, allow_list.OWN)
        for number, _ in calls.values()
    }
    checked = {56, 72, 16, 157, 302, 62, 234, 435}
    starts = {number for number, _ in allow_list.STARTS.values()}
    for number in range(1, 600):
        if number not in listed | checked | (starts if processes else set()):
            assert answer(program, number) == errno.EPERM, number


def test_another_architecture_and_its_numbers_are_refused(processes: bool) -> None:
    assert answer(of(processes), 1, arch=0x40000003) == errno.EPERM
    assert answer(of(processes), 1 | 0x40000000) == errno.EPERM
    assert answer(of(processes), -1) == errno.EPERM


def test_clone_makes_no_namespace_and_alone_only_threads() -> None:
    thread, fork = 0x3D0F00, 0x1200011
    for flag in (1 << 7, *(1 << bit for bit in (17, *range(25, 31)))):
        for processes in (False, True):
            assert answer(of(processes), 56, thread | flag) == errno.EPERM, hex(flag)
    assert answer(of(False), 56, thread) == ALLOWED == answer(of(True), 56, fork)
    assert answer(of(False), 56, fork) == errno.EPERM
    assert answer(of(True), 435) == errno.ENOSYS == answer(of(False), 435)
    for start, _ in allow_list.STARTS.values():
        assert answer(of(False), start) == errno.EPERM and answer(of(True), start) == ALLOWED


def test_signals_reach_the_process_alone_and_none_of_them_is_sigkill() -> None:
    for call, arguments in ((62, (77, SIGTERM)), (234, (77, 78, SIGTERM))):
        assert answer(of(False), call, *arguments) == ALLOWED
        assert answer(of(False), call, 76, *arguments[1:]) == errno.EPERM
        assert answer(of(False), call, -1, *arguments[1:]) == errno.EPERM
        assert answer(of(True), call, *arguments[:-1], SIGKILL) == errno.EPERM
        assert answer(of(False), call, *arguments[:-1], SIGKILL) == errno.EPERM


@pytest.mark.parametrize(
    ("call", "before", "allowed", "refused"),
    [
        (72, (0,), 3, 8),  # fcntl: F_GETFL, F_SETOWN
        (72, (0,), 1030, 1024),  # F_DUPFD_CLOEXEC, F_SETLEASE
        (16, (0,), 0x5401, 0x5412),  # ioctl: TCGETS, TIOCSTI
        (157, (), 15, 1),  # prctl: PR_SET_NAME, PR_SET_PDEATHSIG
        (302, (), 0, 1),  # prlimit64 of itself, of another process
    ],
)
def test_arguments_that_do_harm_are_refused(
    processes: bool, call: int, before: tuple[int, ...], allowed: int, refused: int
) -> None:
    assert answer(of(processes), call, *before, allowed) == ALLOWED
    assert answer(of(processes), call, *before, refused) == errno.EPERM


def test_the_other_machine_has_the_same_calls() -> None:
    program = of(False, ARM)
    arch = 0xC00000B7
    for calls in (allow_list.MEMORY, allow_list.FILES, allow_list.WAITS, allow_list.OWN):
        for name, (_, number) in calls.items():
            if number:
                assert answer(program, number, arch=arch) == ALLOWED, name
    assert answer(program, 0, arch=arch) == errno.EPERM  # io_setup; read is 0 on x86_64 alone
    assert answer(program, 220, 1 << 28, arch=arch) == errno.EPERM
    with pytest.raises(ValueError, match="riscv64"):
        allow_list.program("riscv64", processes=False)
