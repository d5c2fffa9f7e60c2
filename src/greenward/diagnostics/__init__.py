"""What went wrong with a run, and when: reads run directories, needs numpy and nothing heavier."""
