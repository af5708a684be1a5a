"""ooc's own functions: arguments become ops (`forward.py`, `backward.py`, ...), and `dispatch.py` hands them to the runtime."""
