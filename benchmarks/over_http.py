"""Figures of the service in a process of its own, called over loopback HTTP by this one."""
