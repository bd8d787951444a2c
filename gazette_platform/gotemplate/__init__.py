"""A subset of Go's ``text/template``, enough for the path postfixes of fragments, and for lines.

Nouns: a *template* is text with *actions* in ``{{ }}``; an action evaluates a *pipeline* of
*commands*, each an operand or a call of a *function* or *method*. *Objects* are what templates see
of our values (`values.GoObject`): they show fields and methods by their Go names.

Supported: text, comments, trim markers, fields, methods with arguments, variables, parentheses,
pipelines, ``if``, ``else if``, ``with``, ``range`` over lists, and the functions of `functions`.
Not supported, and refused with their name: ``define``, ``template``, ``block``, ``break``,
``continue``, ``call``, ``html``, ``js``. Stricter than Go: ``printf`` with arguments that do not
fit its verbs is an error instead of a ``%!d(string=…)`` in a path.

Templates come from users, so their length, and the steps and output of an execution are bounded, except
where users run them for themselves: see `runtime`. Whatever goes wrong is a `ValidationError`.
"""

from __future__ import annotations

from gazette_platform.gotemplate.go_time import ZERO_TIME, format_time, time_object
from gazette_platform.gotemplate.runtime import Template
from gazette_platform.gotemplate.values import GoObject, Method, NamedInt

__all__ = ["ZERO_TIME", "GoObject", "Method", "NamedInt", "Template", "format_time", "time_object"]
