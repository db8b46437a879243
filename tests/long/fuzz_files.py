"""Files that are read: configurations of models, traces, saved documents, benchmarks."""

import io
import json
from copy import deepcopy

from described import described
from fuzz_made import anything, file_of, spoiled_bytes, spoiled_json
from published_configs import LLAMA_8B, QWEN3_32B, QWEN25_3B
from rich.console import Console
from test_bench_compare import REPORT
from test_inspect_files import REGISTRATION

from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.telemetry.prometheus import prometheus_text
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.bench_compare import comparison_of, read_baseline
from ems_cli.diagnostics.break_even import bandwidth_from_bench
from ems_cli.diagnostics.compare import compare
from ems_cli.diagnostics.live import live_report, prometheus_report
from ems_cli.diagnostics.model_presets import PRESETS
from ems_cli.diagnostics.plan import Deployment, plan_of
from ems_cli.diagnostics.replay import Entry, replay_trace
from ems_cli.diagnostics.saved import Document, read_document, saved_report
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of
from ems_cli.diagnostics.trace_file import read_trace
from ems_cli.render.as_json import report_json
from ems_cli.render.bench_compare import comparison_text
from ems_cli.render.inspect import compare_text, saved_text
from ems_cli.render.live import live_text
from ems_cli.render.plan import plan_text
from ems_cli.render.replay import replay_text

_MODELS = (*PRESETS.values(), LLAMA_8B, QWEN3_32B, QWEN25_3B)
_MORE_FIELDS = (
    *("layer_types", "sliding_window", "num_kv_shared_layers", "full_attention_interval"),
    *("indexer_types", "index_head_dim", "text_config", "max_window_layers", "n_layers", "dim"),
    *("head_dim", "global_head_dim", "num_global_key_value_heads", "dtype", "use_sliding_window"),
)
_PROCESS = described()
_GROUPED = described(cache={"groups": [StoreLayerGroupDesc(128, [at]) for at in range(2)]})
_NOTHING_REGISTERED = {**described(), "registration": None}
_LOADED = deepcopy(REPORT)
_LOADED["devices"][0] |= {
    "labels": ["SIMULATED"],
    "span_facts": {"median_nbytes": 4096},
    "operations": {
        "save": {"runs": _LOADED["devices"][0]["operations"]["save"]["runs"][:7]},
        "load": {"runs": [], "figures": {"bytes_per_second": 1e9}},
    },
}


def shown(renderable):
    """Draw a report as a terminal would show it."""
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(renderable)
    text = console.file.getvalue()
    assert text.strip()
    assert "\x1b" not in text, "a sequence that reaches the terminal"


class Files:
    """Targets that need a folder; what is kept in it is one file, and one run directory."""

    def __init__(self, room):
        self._file = room / "file.json"
        self._run_dir = room / "run"
        self._run_dir.mkdir(mode=0o700)

    def targets(self):
        """Return what is tried: how often, and in which errors it may end."""
        return {
            self.model_config: (10, (BadInput,)),
            self.trace: (10, (BadInput,)),
            self.saved_file: (6, (BadInput,)),
            self.compared_files: (6, (BadInput,)),
            self.run_dir: (4, (BadInput,)),
            self.baseline: (3, (BadInput,)),
            self.bench_of_a_plan: (4, (BadInput,)),
        }

    def model_config(self, random):
        """A configuration comes to a shape of positive sizes, or is refused."""
        config = dict(random.choice(_MODELS))
        for name in random.sample(_MORE_FIELDS, random.choice((0, 0, 1, 2))):
            config[name] = anything(random)
        path = file_of(random, config, self._file)
        request = ShapeRequest(
            model=str(path),
            tp=random.choice((1, 1, 2, 8, 3)),
            pp=random.choice((1, 1, 2, 4, 100)),
            mtp=random.random() < 0.2,
            blocks=random.choice((None, 1, 4)),
        )
        shape = shape_of(request)
        assert 0 < len(shape.layers) <= 3 * 4096
        assert shape.num_blocks > 0
        assert all(plane.token_nbytes > 0 for layer in shape.layers for plane in layer.planes)
        if len(shape.layers) < 200 and random.random() < 0.3:
            report = plan_of(request, Deployment(random.choice((None, 1 << 40)), 4096, 8))
            report_json(report)
            shown(plan_text(report))
        return True

    def trace(self, random):
        """A trace is replayed as it is, or each wrong line is told, or it is refused."""
        lines, seen = [], list(range(6))
        for at in range(random.randint(1, 6)):
            ids = seen[: random.randint(0, 6)]
            length = max(1, 512 * len(ids) - random.randrange(512)) if ids else 1
            line = {"timestamp": at * 1000, "input_length": length, "hash_ids": ids}
            if random.random() < 0.7:
                line["output_length"] = 5
            if random.random() < 0.1:
                line |= {"chat_id": 1, "parent_chat_id": -1}
            if random.random() < 0.2:
                line = spoiled_json(random, line)
            lines.append(json.dumps(line).encode())
            random.shuffle(seen)
        raw = b"\n".join(lines) + random.choice((b"", b"\n"))
        kind = random.random()
        if kind < 0.3:
            raw = spoiled_bytes(random, raw)
        elif kind < 0.31:
            raw = random.choice(
                (b"", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b"\xef\xbb\xbf")
            )
        self._file.write_bytes(raw)
        found = read_trace(self._file, random.choice((None, None, 512, 16)))
        assert found.problem_count >= len(found.problems) <= 12
        for problem in found.problems:
            assert problem.text
            assert problem.line >= 1
        if len(found.requests) <= 50:
            report = replay_trace(found, str(self._file), Entry("x", 4096, 8.0), capacities=[3])
            report_json(report)
            shown(replay_text(report))
        return True

    def saved_file(self, random):
        """A saved document is shown, or refused by its name."""
        content = random.choice((_PROCESS, _GROUPED, _NOTHING_REGISTERED, REGISTRATION))
        path = file_of(random, content, self._file)
        report = saved_report(read_document(str(path), self._run_dir), 5000.0)
        report_json(report)
        shown(saved_text(report))
        return True

    def compared_files(self, random):
        """Two documents are compared, or the one that cannot be is refused."""
        content = random.choice((_PROCESS, _GROUPED, _NOTHING_REGISTERED, REGISTRATION))
        first = read_document(str(file_of(random, content, self._file)), self._run_dir)
        other = random.choice((_PROCESS, REGISTRATION))
        kind = "process" if other is _PROCESS else "registration"
        documents = [first, Document("sound", kind, other)]
        random.shuffle(documents)
        report = compare(random.choice(("hash", "namespace")), *documents)
        report_json(report)
        shown(compare_text(report))
        return True

    def run_dir(self, random):
        """Whatever lies in a run directory: processes are shown, other files passed over."""
        content = random.choice((_PROCESS, _GROUPED, _NOTHING_REGISTERED))
        file_of(random, content, self._run_dir / "4242.json")
        report = live_report(self._run_dir, clock=lambda: 5000.0)
        report_json(report)
        shown(live_text(report, details=random.random() < 0.5))
        prometheus_report(self._run_dir)
        if report.processes:
            prometheus_text([({"pid": "1"}, _PROCESS["counters"])])
        return bool(report.processes)

    def baseline(self, random):
        """A benchmark is compared with, or refused by its name."""
        path = file_of(random, _LOADED, self._file)
        for point in read_baseline(path):
            comparison = comparison_of(path, point, _LOADED)
            for part in comparison_text(comparison):
                shown(part)
        return True

    def bench_of_a_plan(self, random):
        """A benchmark tells the bandwidth of loads, or is refused by its name."""
        found = bandwidth_from_bench(file_of(random, _LOADED, self._file))
        assert 0 < found.bytes_per_second < float("inf")
        return True
