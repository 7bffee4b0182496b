"""Scoring of every kind of task: one module each for translation, captions and images, and what they share.

task.py is the interface, kinds.py the list. A new task needs a module here, a fairseq task if fairseq has none
(`fairseq_resid.tasks`), and a command that prepares its data folders (`fairseq_resid.data`).
"""
