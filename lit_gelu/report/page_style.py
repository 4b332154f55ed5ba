"""The style of a page: light and dark, wide and narrow, in one text."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1f; --soft: #55565e; --paper: #ffffff; --card: #f6f6f9; --edge: #d9d9e0;
  --link: #0b57a4; --alarm: #a40e1e; --warning: #8a4b00; --note: #3f4a63; --good: #17652c; --swap: #7a3fb0;
  --s0: #0b62a4; --s1: #b4470e; --s2: #1a7a45; --s3: #8a2f9c; --s4: #6a6500; --s5: #b3164d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8ee; --soft: #b0b1bb; --paper: #16171b; --card: #202127;
  --edge: #3a3b44; --link: #8ab8f2; --alarm: #ff8f8f; --warning: #f2b45e; --note: #b9c3dd; --good: #83d69a;
  --swap: #c9a0f0; --s0: #6fb3ef; --s1: #f09a63; --s2: #6fd198; --s3: #d79be3; --s4: #d6cf5c; --s5: #f58ab0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  overflow-wrap: anywhere; }
header, main, footer { max-width: 76rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .7rem; border-bottom: 1px solid var(--edge); padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
p { margin: .3rem 0; } a { color: var(--link); } .soft { color: var(--soft); }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0; margin: .8rem 0; }
.facts { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; margin: 1rem 0; }
.facts div { background: var(--card); border: 1px solid var(--edge); border-radius: .4rem; padding: .4rem .8rem; }
.facts dt { color: var(--soft); font-size: .8rem; } .facts dd { margin: 0; font-weight: 600; }
.finding { border-left: .3rem solid var(--note); background: var(--card); padding: .5rem .9rem; margin: .6rem 0;
  border-radius: 0 .4rem .4rem 0; }
.finding .level { font-weight: 700; color: var(--note); }
.finding.alarm { border-color: var(--alarm); } .alarm .level { color: var(--alarm); }
.finding.warning { border-color: var(--warning); } .warning .level { color: var(--warning); }
.finding.good { border-color: var(--good); } .good .level { color: var(--good); }
.finding ul { margin: .3rem 0; padding-left: 1.2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--edge); border-radius: .4rem; padding: .7rem;
  min-width: 0; }
figcaption { font-size: .88rem; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.grid { stroke: var(--edge); } .swap { stroke: var(--swap); stroke-width: 1.5; stroke-dasharray: 5 3; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.line.limit { stroke: var(--ink); stroke-dasharray: 2 3; }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); stroke-dasharray: 8 3; } .s2 { stroke: var(--s2); }
.s3 { stroke: var(--s3); stroke-dasharray: 8 3; } .s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); }
.mark { stroke: none; } .mark.s0 { fill: var(--s0); } .mark.s1 { fill: var(--s1); } .mark.s2 { fill: var(--s2); }
.mark.s3 { fill: var(--s3); } .mark.s4 { fill: var(--s4); } .mark.s5 { fill: var(--s5); }
.legend { list-style: none; padding: 0; margin: .3rem 0 0; font-size: .85rem; }
.legend svg { display: inline-block; width: 1.8rem; height: .7rem; vertical-align: middle; margin-right: .4rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; }
table { overflow-wrap: normal; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--edge); vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; } td.value { min-width: 6rem; }
ol.timeline { border-left: 2px solid var(--swap); list-style: none; padding: 0 0 0 1rem; margin: .5rem 0; }
ol.timeline li { margin: .6rem 0; }
code { font: .9em ui-monospace, monospace; }
details { margin: .5rem 0; } summary { cursor: pointer; }
footer { margin-top: 2.5rem; padding-bottom: 2rem; color: var(--soft); font-size: .88rem; }
@media (max-width: 30rem) { header, main, footer { padding-left: .7rem; padding-right: .7rem; } }
@media print { .finding, figure { break-inside: avoid; } }
"""
