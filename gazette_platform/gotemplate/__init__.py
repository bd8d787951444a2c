"""The part of Go's ``text/template`` that path postfixes of fragments are written in.

Supported: text, comments, trim markers, fields, methods with arguments, pipelines, parentheses, variables declared by
``:=``, ``if`` with ``else if`` and ``else``, comparisons (``eq ne lt le gt ge``), ``and or not``, and ``printf`` with
``%s %q %d %x %X %v``. Constants are strings, decimal integers, ``true``, ``false`` and ``nil``.

That is more than Gazette's documentation and tests use, which is fields, ``FirstAppendTime.Format`` and ``printf``. Brokers of
Gazette, written in Go, evaluate all of Go's language. In a cluster with them each broker must derive the same path,
so a template either means here what it means in Go, or is refused by name when the spec is applied: never is it
evaluated to something else. Refused are ``range``, ``with``, ``define``, ``template``, ``block``, assignment by ``=``,
and functions that compute on lists and bytes. ``printf`` refuses arguments that do not fit its verbs, for which
Go would put ``%!d(string=…)`` into a path.

Templates come from users, so their length, and that of values and output, is bounded, except where users run them for
themselves. Whatever goes wrong is a `ValidationError`.
"""

from __future__ import annotations

from gazette_platform.gotemplate.runtime import GoObject, Method, NamedInt, Template

__all__ = ["GoObject", "Method", "NamedInt", "Template"]
