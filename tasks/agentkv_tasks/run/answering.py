"""Check that what a run needs elsewhere answers, before its first episode."""

from concurrent.futures import ThreadPoolExecutor

from agentkv_env.masking import Secrets
from agentkv_tasks.own_sites.serving import SiteError, silence
from agentkv_tasks.run.plan import Plan


def require_answers(plan: Plan) -> None:
    """Ask every site that runs elsewhere, and the judge, for an answer.

    Raises:
        SiteError: sites do not answer; the message names each, and why.
        JudgeError: the judge does not answer.
    """
    elsewhere = _elsewhere(plan)
    with ThreadPoolExecutor(len(elsewhere) or 1) as pool:
        reasons = dict(zip(elsewhere, pool.map(silence, elsewhere.values()), strict=True))
    silent = [
        f"{name} at {elsewhere[name]} ({reason})" for name, reason in reasons.items() if reason
    ]
    if silent:
        found = Secrets().mask("; ".join(silent))
        raise SiteError(f"no web server answers for {found}; start it, or correct its address")
    if plan.judge is not None:
        plan.judge.check()


def _elsewhere(plan: Plan) -> dict[str, str]:
    """Return the address of each site that the run does not start itself."""
    own = plan.suite.sites
    if own is None:
        return {name.strip("_"): address for name, address in plan.sites.items()}
    return {name: site.address for name, site in own.sites.items() if site.start is None}
