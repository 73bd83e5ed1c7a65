"""Tasks of the category form."""

from agentkv_tasks.template import Template

TEMPLATES: tuple[Template, ...] = ()
