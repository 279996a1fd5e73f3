"""System calls of a save and a load: noted, and made to fail one by one."""
