"""The paper's protocol as data: experiments, presets, single runs, and what its authors published."""
