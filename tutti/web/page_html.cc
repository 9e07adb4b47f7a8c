#include "tutti/web/status.h"

namespace tutti::web {

// Shows status.json, which it reads again every second. Texts of the run are set as text, never as HTML. The
// secret in the address (?secret=) is passed on.
const std::string_view kPageHtml = R"(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Tutti</title>
<style>
:root { --text: #1b1b1b; --quiet: #5a5f66; --back: #fff; --box: #f3f4f6; --line: #d5d8dc; --curve: #0b62c4; --bad: #b3261e; --good: #17702f }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --quiet: #a3a9b1; --back: #16181b; --box: #212429; --line: #3a3f46; --curve: #6cb2ff; --bad: #ff8a80; --good: #7fd694 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--back) }
header, footer { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline }
h1, h2, h3 { margin: 0; line-height: 1.3 }
h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin-top: 1.5rem } h3 { font-size: 1rem; margin-top: 1rem }
footer { margin-top: 1.5rem; border-top: 1px solid var(--line); padding-top: .5rem }
.quiet, footer { color: var(--quiet) }
.bad { color: var(--bad) } .good { color: var(--good) }
a { color: var(--curve) }
button { font: inherit; color: inherit; background: var(--box); border: 1px solid var(--quiet); border-radius: .3rem; padding: 0 .6rem; cursor: pointer }
:focus-visible { outline: 3px solid var(--curve); outline-offset: 2px }
progress { width: 100%; height: 1rem; accent-color: var(--curve) }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: .5rem; margin: .75rem 0 }
dl div { background: var(--box); border-radius: .4rem; padding: .4rem .6rem }
dt { color: var(--quiet); font-size: .85rem } dd { margin: 0; font-variant-numeric: tabular-nums; font-weight: 600; overflow-wrap: anywhere }
svg { width: 100%; height: 9rem; display: block; background: var(--box); border-radius: .4rem }
polyline { fill: none; stroke: var(--curve); stroke-width: 2; vector-effect: non-scaling-stroke }
.scroll { overflow-x: auto; max-height: 20rem; overflow-y: auto }
table { border-collapse: collapse; width: 100%; font-size: .9rem }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere }
td:not(:last-child) { white-space: nowrap; overflow-wrap: normal }
</style>
<header>
<h1>Tutti</h1>
<span id="where" class="quiet"></span>
<strong id="health" role="status"></strong>
</header>
<main>
<div id="trainings"><p class="quiet">No training has begun yet.</p></div>
<h2>Last events</h2>
<div class="scroll" tabindex="0" role="region" aria-label="Last events">
<table><thead><tr><th scope="col">Time</th><th scope="col">Level</th><th scope="col">Event</th></tr></thead><tbody id="events"></tbody></table>
</div>
<h2>Tasks, as the job was started</h2>
<p id="tasks"></p>
</main>
<footer>
<span id="updated">Loading</span>
<button id="pause" type="button" aria-pressed="false">Pause updates</button>
<a id="metrics" href="metrics">metrics</a>
<a id="json" href="status.json">status.json</a>
<noscript>This page needs JavaScript; status.json and metrics do not.</noscript>
</footer>
<script>
'use strict';
const byId = id => document.getElementById(id);
const make = (name, text, type) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (type) element.className = type;
  return element;
};
// Changes the page only where it differs, so that a selection or a screen reader is not disturbed.
const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
const known = value => value !== null && value !== undefined;
const count = value => known(value) ? value.toLocaleString('en') : 'unknown';
const short = value => known(value) ? String(Number(value.toPrecision(4))) : 'unknown';
const duration = seconds => {
  const whole = Math.max(0, Math.round(seconds));
  const two = value => String(value).padStart(2, '0');
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h > 0 ? `${h}:${two(m)}:${two(s)} h` : m > 0 ? `${m}:${two(s)} min` : `${s} s`;
};
const time = unix => new Date(unix * 1000).toLocaleTimeString();

const figures = (training, now) => {
  const list = [];
  const left = known(training.end_step) && training.steps_per_second > 0 && training.phase === 'training'
    ? duration((training.end_step - training.step) / training.steps_per_second) : null;
  list.push(['step', count(training.step) + (known(training.end_step) ? ' of ' + count(training.end_step) : '')]);
  list.push(['epoch', count(training.epoch)]);
  if (left) list.push(['left', left]);
  list.push(['loss', short(training.loss)]);
  list.push(['examples a second', short(training.examples_per_second)]);
  list.push(['steps a second', short(training.steps_per_second)]);
  list.push(['learning rate', short(training.learning_rate)]);
  list.push(['workers', count(training.workers)]);
  list.push(['lanes', count(training.lanes)]);
  if (training.restarts > 0) list.push(['resumed', count(training.restarts) + (training.restarts > 1 ? ' times' : ' time')]);
  if (training.seconds_in_step > 5) list.push(['in this step', duration(training.seconds_in_step)]);
  list.push(['checkpoint', known(training.checkpoint_step)
    ? `step ${count(training.checkpoint_step)}, ${duration(now - training.checkpoint_time)} ago` : 'none yet']);
  for (const [name, value] of Object.entries(training.values)) list.push([name, short(value)]);
  return list;
};

const drawCurve = (svg, points) => {
  const finite = points.filter(point => known(point[1]));
  if (finite.length < 2) return;
  const xs = finite.map(point => point[0]), ys = finite.map(point => point[1]);
  const [left, right, low, high] = [xs[0], xs[xs.length - 1], Math.min(...ys), Math.max(...ys)];
  svg.firstChild.setAttribute('points', finite.map(([x, y]) =>
    `${(x - left) / (right - left || 1) * 980 + 10},${190 - (y - low) / (high - low || 1) * 180}`).join(' '));
  svg.setAttribute('aria-label', `Loss from step ${count(left)} to ${count(right)}: between ${short(low)} and ${short(high)}, now ${short(ys[ys.length - 1])}`);
};

const svgNames = 'http://www.w3.org/2000/svg';
const makeTraining = name => {
  const section = make('section');
  section.dataset.name = name;
  const svg = document.createElementNS(svgNames, 'svg');
  svg.setAttribute('viewBox', '0 0 1000 200');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', 'Loss: not known yet');
  svg.append(document.createElementNS(svgNames, 'polyline'));
  const progress = make('progress');
  progress.setAttribute('aria-label', 'Steps done');
  section.append(make('h2'), progress, make('dl'), make('h3', 'Loss'), svg, make('p', '', 'quiet'));
  byId('trainings').append(section);
  return section;
};

const showTraining = (training, now) => {
  const all = byId('trainings');
  if (!all.querySelector('section')) all.replaceChildren();
  const section = [...all.children].find(each => each.dataset.name === training.name) || makeTraining(training.name);
  const [title, progress, list, , svg, range] = section.children;
  put(title, (training.name ? training.name + ': ' : '') + training.phase + (training.why ? ': ' + training.why : ''));
  progress.hidden = !known(training.end_step) || training.end_step === 0;
  if (!progress.hidden) { progress.max = training.end_step; progress.value = training.step; }
  const wanted = figures(training, now);
  if (list.children.length !== wanted.length || wanted.some(([name], i) => list.children[i].firstChild.textContent !== name))
    list.replaceChildren(...wanted.map(([name]) => {
      const box = make('div');
      box.append(make('dt', name), make('dd'));
      return box;
    }));
  wanted.forEach(([, value], i) => put(list.children[i].lastChild, value));
  drawCurve(svg, training.curve);
  put(range, training.curve.length < 2 ? 'Not known yet.' : svg.getAttribute('aria-label') + '.');
};

const showRows = (body, rows) => {
  const key = JSON.stringify(rows);
  if (body.dataset.key === key) return;
  body.dataset.key = key;
  body.replaceChildren(...rows.map(cells => {
    const row = make('tr');
    row.append(...cells.map(text => make('td', text, text === 'error' || text === 'warning' ? 'bad' : '')));
    return row;
  }));
};

const show = status => {
  put(byId('where'), `${status.task} on ${status.host}, ${status.device}, version ${status.version}, running for ${duration(status.now - status.started)}`);
  put(byId('health'), status.trouble || 'healthy');
  byId('health').className = status.trouble ? 'bad' : 'good';
  for (const training of status.trainings) showTraining(training, status.now);
  showRows(byId('events'), status.events.slice().reverse().map(event => [time(event.time), event.level, event.text]));
  put(byId('tasks'), status.tasks.join(', '));
  const first = status.trainings[0];
  document.title = first ? `${first.phase}, step ${count(first.step)} - Tutti` : 'Tutti';
  put(byId('updated'), 'Updated ' + time(status.now));
};

let paused = false;
const update = async () => {
  if (!paused) {
    try {
      const answer = await fetch('status.json' + location.search, { cache: 'no-store', signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(await answer.text());
      show(await answer.json());
    } catch (error) {
      put(byId('health'), 'The run does not answer: it may have ended');
      byId('health').className = 'bad';
    }
  }
  setTimeout(update, 1000);
};
byId('pause').addEventListener('click', () => {
  paused = !paused;
  byId('pause').setAttribute('aria-pressed', String(paused));
});
for (const link of ['metrics', 'json']) byId(link).search = location.search;
update();
</script>
</html>
)";

}  // namespace tutti::web
