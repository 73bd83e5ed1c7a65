"""Tasks of the category shopping."""

from agentkv_tasks.template import Template

TEMPLATES: tuple[Template, ...] = ()
