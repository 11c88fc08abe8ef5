"""What holds for all tests."""

from __future__ import annotations

import signal
import threading

# A shell that is not interactive starts what it runs in the background with Ctrl-C ignored, and processes inherit that:
# tests of Ctrl-C would wait for ever.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
