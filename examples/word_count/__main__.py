"""``python -m examples.word_count serve``."""

from examples.word_count.application import WordCount
from gazette_platform.app import run

run(WordCount())
