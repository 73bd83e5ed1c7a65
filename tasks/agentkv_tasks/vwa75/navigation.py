"""Tasks of the category navigation."""

from agentkv_tasks.template import Template

TEMPLATES: tuple[Template, ...] = ()
