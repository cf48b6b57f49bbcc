# Forks this interpreter for each script. It runs no script itself; the fork enters the namespaces of its run, and gives up
# what it may do there, before it learns anything of its script. The process that asked for it compares what the kernel says.
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 22, 2
LANDLOCK_RESTRICT_SELF = 446
CAPABILITY_VERSION_3 = 0x20080522
FIRST_FREE, ABOVE_GIVEN, USER, INIT = 6, 20, 1000, 1
LONGEST, MOST_DESCRIPTORS = 65536, 16
CLONE_VM, CLONE_VFORK, SIGCHLD = 0x100, 0x4000, 17
# Part of its stack that each process has which shares its memory.
PART = 0x40000


def settle():
    """Collects once what imports left, so that forks share memory, and writes what they printed. Returns the generators of
    random numbers that imports have made."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    random, numbers = sys.modules.get("random"), sys.modules.get("numpy.random")
    kinds = (random.Random,) if random else ()
    if numbers:
        kinds += numbers.BitGenerator, numbers.RandomState
    # Not `isinstance`, which asks objects that stand for others.
    generators = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    gc.freeze()
    return generators


def fork_for_scripts(home, become_script):
    """Calls a function in each fork, with what it reports when it is confined."""
    # Those that forks need, too, so that each finds them.
    import _socket, atexit, ctypes, fcntl

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    libc = ctypes.PyDLL(None, use_errno=True)
    # Each type is made once: a fork that makes one writes to many pages, and copies them.
    types = Program, ctypes.c_uint32 * 2, ctypes.c_uint32 * 6
    # The two processes between this one and that of the script run in its memory while it waits: only what becomes the script
    # has a copy. They return, so that all is as before, and use what lies below this one's part of the stack.
    entry = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    stack = ctypes.c_void_p.in_dll(libc, "__libc_stack_end").value & ~0xFFF
    libc.clone.argtypes = entry, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    message = given = None

    def report(error):
        at = error.__traceback__
        posix.write(given[3], f"{type(error).__name__}, line {at and at.tb_lineno}: {error}".encode()[:500])

    @entry
    def enter(_):
        try:
            for namespace in given[8:] if message[1] else given[6:]:
                checked(ctypes, libc.setns(namespace, 0))
            child = libc.clone(leave, stack - 2 * PART, CLONE_VM | CLONE_VFORK | SIGCHLD, None)
            checked(ctypes, min(0, child))
            # What is killed leaves the memory as it is at that moment.
            return posix.WIFSIGNALED(posix.waitpid(child, 0)[1])
        except BaseException as error:
            report(error)
        return 0

    # The first process in the namespace leaves its child to the init process.
    @entry
    def leave(_):
        try:
            if posix.fork():
                return 0
            # Another descriptor gets its number.
            requests.detach()
            own = confine(libc, ctypes, fcntl, types, message, given, home)
            seed_again(generators)
        except BaseException as error:
            report(error)
            return 1
        try:
            become_script(own)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        posix._exit(1)

    generators = settle()
    requests = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fileno=3)
    posix.write(4, b".")
    posix.close(4)
    while True:
        message, ancillary, _, _ = requests.recvmsg(LONGEST, _socket.CMSG_SPACE(4 * MOST_DESCRIPTORS), 0x40000000)
        if not message:
            posix._exit(0)
        given = [fd for _, _, data in ancillary for fd in memoryview(data).cast("i")]
        child = libc.clone(enter, stack - PART, CLONE_VM | CLONE_VFORK | SIGCHLD, None)
        for fd in given:
            posix.close(fd)
        if child < 0 or posix.waitpid(child, 0)[1]:
            posix._exit(1)


def checked(ctypes, result):
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, posix.strerror(error))


def confine(libc, ctypes, fcntl, types, message, given, home):
    Program, Header, Capabilities = types
    out, err, go, ready, progress, rules = given[:6]
    while posix.getppid() != INIT:
        posix.sched_yield()
    posix.setsid()
    for mover in given[6:8] if message[1] else []:
        posix.write(mover, b"0")
    # Above the numbers that they get, so that none replaces another.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE_GIVEN) for fd in (out, err, go, ready, progress)]
    rules = fcntl.fcntl(rules, fcntl.F_DUPFD_CLOEXEC, ABOVE_GIVEN)
    for fd, number in zip(high, (1, 2, 3, 4, 5)):
        posix.dup2(fd, number)
    posix.chdir(home)
    if message[0]:
        posix.setgroups([])
    posix.setresgid(USER, USER, USER)
    posix.setresuid(USER, USER, USER)
    checked(ctypes, libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
    checked(ctypes, libc.capset(Header(CAPABILITY_VERSION_3, 0), Capabilities()))
    checked(ctypes, libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT_SELF), ctypes.c_long(rules), ctypes.c_long(0)))
    posix.closerange(FIRST_FREE, posix.sysconf("SC_OPEN_MAX"))
    program = Program((len(message) - 2) // 8, message[2:])
    checked(ctypes, libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))
    return str(posix.getpid()).encode()


def seed_again(generators):
    """Forks must not share what they draw; `random` does this itself for its functions."""
    for one in generators:
        try:
            if hasattr(one, "seed"):
                one.seed()
            else:
                one.state = type(one)().state
        except Exception:
            # A package has made it another way.
            pass
    uuid = sys.modules.get("uuid")
    if uuid:
        uuid._node = uuid._last_timestamp = None
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_add(posix.urandom(32), 32.0)
