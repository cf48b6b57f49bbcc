import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
given = os.environ["ROCKBOT_INPUT"].split("\n")


def call(number, *args):
    "A system call: what it returns, or the name of its error."
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number), *args)
    return result if result >= 0 else errno.errorcode[ctypes.get_errno()]


def tried(attempt):
    "What it returns, or the name of its error."
    try:
        result = attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "done" if result is None else result


