"""Flags of XLA for a test that starts a process of several devices."""

from __future__ import annotations

import os


def several_devices(count: int) -> str:
    """The value of ``XLA_FLAGS`` for so many devices of one CPU, compiled as in the other tests."""
    return f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
