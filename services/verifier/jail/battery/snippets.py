"""Attempts to break out of a language: programs in what it shares with Python. Each prints a hole.

A program reads one line that says where the traps are. What the language refuses raises, and the
next way is tried.
"""

_WAYS = """
import json
trap = json.loads(input())

def tried(what, way):
    try:
        got = way()
    except Exception:
        return
    print(what, str(got)[:60])
"""

FILES = """
def read(path):
    with open(path) as file:
        return file.read(20)

def append(path):
    with open(path, 'a') as file:
        file.write('x')

def read_by_path(path):
    from pathlib import Path
    return Path(path).read_bytes()[:20]

def write_by_path(path):
    from pathlib import Path
    return Path(path + '.made').write_text('x')

def listed(path):
    import os
    return os.listdir(path)

def exists(path):
    import os
    return os.stat(path)

for path in trap['files']:
    tried('read ' + path, lambda: read(path))
    tried('read by its path ' + path, lambda: read_by_path(path))
    tried('saw ' + path, lambda: exists(path))
for path in trap['folders']:
    tried('listed ' + path, lambda: listed(path))
for path in trap['writable']:
    tried('wrote ' + path, lambda: append(path))
    tried('made a file beside ' + path, lambda: write_by_path(path))
"""

MODULES = """
names = ['builtins', 'ctypes', 'gc', 'importlib', 'inspect', 'io', 'marshal', 'multiprocessing',
         'pickle', 'pydantic_monty', 'resource', 'services', 'signal', 'socket', 'subprocess',
         'tempfile', 'threading', 'urllib.request', '_io', '_posixsubprocess', 'posix']
for name in names:
    tried('module ' + name, lambda: exec('import ' + name))
    tried('module by its name ' + name, lambda: __import__(name))
"""

SYSTEM = """
import os, sys
tried('environment', lambda: os.environ['PATH'])
tried('variable', lambda: os.getenv('PATH', 'none'))
tried('process', lambda: os.getpid())
tried('command', lambda: os.system('true'))
tried('pipe', lambda: os.popen('true').read())
tried('signal', lambda: os.kill(trap['processes'][0], 0))
tried('descriptor', lambda: os.fstat(1))
tried('entropy', lambda: os.urandom(4))
tried('modules', lambda: sys.modules['os'])
tried('frame', lambda: sys._getframe())
tried('path', lambda: sys.path[0])
"""

OBJECTS = """
def ours():
    pass

def trace():
    try:
        1 / 0
    except ZeroDivisionError as error:
        return error.__traceback__.tb_frame

tried('classes', lambda: ().__class__.__base__.__subclasses__())
tried('classes of a type', lambda: type(1).__mro__)
tried('classes by a format', lambda: '{0.__class__.__mro__}'.format(1))
tried('classes by getattr', lambda: getattr(1, '__cl' + 'ass__').__mro__)
tried('classes by eval', lambda: eval('().__class__.__base__'))
tried('globals of a function', lambda: ours.__globals__)
tried('code of a function', lambda: ours.__code__)
tried('globals of input', lambda: input.__globals__)
tried('owner of a builtin', lambda: print.__self__)
tried('builtins', lambda: __builtins__)
tried('loader', lambda: json.__loader__)
tried('spec', lambda: json.__spec__.origin)
tried('frame of an error', trace)
tried('compiled code', lambda: compile('1', '', 'eval'))
"""

CLOCK = """
import time
import datetime
if time.time() != 946684800 or datetime.datetime.now().year != 2000:
    print('the clock of the machine')
start = time.perf_counter()
time.sleep(0.02)
if time.perf_counter() != start:
    print('how long something takes')
"""

LEAVES = """
import json, math
left = 'left'
tried('', lambda: setattr(json, 'left', left))
tried('', lambda: setattr(math, 'pi', 3))
tried('', lambda: setattr(int, 'left', left))
"""

FINDS = """
tried('a variable', lambda: left)
tried('a mark in a module', lambda: json.left)
import math
if math.pi == 3:
    print('a changed module')
"""

MEMORY = """
taken = []
while len(taken) < 10 * trap['memory_mb']:
    taken.append('x' * (1 << 20) + str(len(taken)))
    print('took 1')
"""

# Each asks for memory, time or depth at once, in a way of its own.
BOMBS = (
    "'x' * (1 << 40)",
    "[0] * (1 << 34)",
    "1 << (1 << 40)",
    "10 ** 10 ** 9",
    "'%1000000000d' % 1",
    "f'{1:1000000000}'",
    "('a' * 10**6).replace('a', 'b' * 10**5)",
    "','.join(['a' * 10**6] * 10**5)",
    "list(range(10**10))",
    "sorted(range(10**9))",
    "list(zip(*[range(10**5)] * 10**5))",
    "import math\nmath.comb(10**7, 5 * 10**6)",
    "import re\nwhile True:\n  try: re.compile('((a{1000}){1000}){1000}')\n  except re.error: pass",
    "import json\nwhile True: json.loads('[' * 150 + ']' * 150)",
    "import itertools\nlist(itertools.permutations(range(14)))",
    "while True: pass",
    "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
    "def f(): f(), f()\nwhile True:\n  try: f()\n  except RecursionError: pass",
    "x = []\nwhile True: x = [x]",
    "sum(range(10**12))",
    "exec('x = 1\\n' * 10**8)",
)
OUTPUT = "while True: print('x' * 1000)"

PROGRAMS = {
    name: _WAYS + program
    for name, program in {
        "files": FILES,
        "modules": MODULES,
        "system": SYSTEM,
        "objects": OBJECTS,
        "clock": CLOCK,
        "leaves": LEAVES,
        "finds": FINDS,
        "memory": MEMORY,
    }.items()
}
"""Programs by name, in this order: `finds` looks for what `leaves` left."""
