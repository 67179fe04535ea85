"""Documents of the API over a real store."""

from typing import Any


async def test_a_grown_tree_has_its_nodes(here: Any) -> None:
    spec = here.store.forge.spec()
    await here.store.grow(spec)
    run_id = here.store.forge.run_id
    listed = await here.get(f"/api/runs/{run_id}/trees")
    (tree,) = listed["trees"]
    assert tree["tree_id"] == spec.tree_id.hex() and listed["next"] is None
    whole = await here.get(f"/api/trees/{tree['tree_id']}")
    assert [node["parent"] for node in whole["nodes"]] == [-1, 0, 0, 2]
    assert whole["nodes"][0]["kind"] == "CONTEXT" and whole["advantage_note"]
