"""Machines: detection, several processes, jobs of Slurm."""
