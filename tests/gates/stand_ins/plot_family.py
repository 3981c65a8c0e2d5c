"""In place of drawing: a family's figures by name, each an image of one pixel, which the page can embed."""

import base64
import json
from pathlib import Path

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>\n'
FIGURES = {
    "arms": ["throughput_by_arm", "ttft_by_arm"],
    "throughput": ["throughput_curve_Qwen3-0.6B_all"],
    "effects": ["effect_plot"],
    "caches": ["hit_rates_by_tier", "reuse_by_tier_size"],
    "system": ["pcp_memory_usage"],
    "recordings": ["level_timeline_Qwen3-0.6B"],
}

if __name__ == "__main__":
    folder = Path(snakemake.output[0])
    folder.mkdir(parents=True, exist_ok=True)
    drawn = FIGURES.get(folder.name, [])
    for name in drawn:
        (folder / f"{name}.png").write_bytes(PIXEL)
        (folder / f"{name}.svg").write_text(SVG)
    lacking = {"goodput": "no limits"} if folder.name == "throughput" else {}
    listed = {"drawn": drawn, "lacking": lacking, "left_out": {}}
    (folder / "figures.json").write_text(json.dumps(listed, indent=1) + "\n")
