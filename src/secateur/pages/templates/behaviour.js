'use strict';
const page = document.documentElement;
const charts = [...document.querySelectorAll('.js-plotly-plot')];

// The theme is the reader's preference until the button chooses another.
const prefersDark = matchMedia('(prefers-color-scheme: dark)');
const button = document.querySelector('.theme');
const isDark = () => (page.dataset.theme ? page.dataset.theme === 'dark' : prefersDark.matches);
const showTheme = () => button.setAttribute('aria-pressed', isDark());
button.addEventListener('click', () => {
  page.dataset.theme = isDark() ? 'light' : 'dark';
  showTheme();
});
prefersDark.addEventListener('change', showTheme);
showTheme();

// Each chart was drawn before those beside it were there, so their widths are set once all are. Paper is narrower than
// most screens, and the browser does not lay the page out anew before it tells that it prints.
// Tables that the reader has not opened are printed where they are short.
const PAPER_WIDTH = 660;
const MOST_PRINTED_ROWS = 40;
function fit() { charts.forEach((chart) => Plotly.Plots.resize(chart)); }
addEventListener('beforeprint', () => {
  for (const details of document.querySelectorAll('details:not([open])')) {
    details.open = details.dataset.opened = details.querySelectorAll('tr').length <= MOST_PRINTED_ROWS;
  }
  charts.forEach((chart) => Plotly.relayout(chart, {width: Math.min(chart.clientWidth, PAPER_WIDTH)}));
});
addEventListener('afterprint', () => {
  for (const details of document.querySelectorAll('details[data-opened=true]')) details.open = false;
  charts.forEach((chart) => Plotly.relayout(chart, {width: null, autosize: true}));
});
fit();

// A legend entry is a button for the keyboard as it is for the mouse. The legend is in the order of the traces.
function entries(chart) { return [...chart.querySelectorAll('.legendtoggle')]; }
function shownInLegend(chart) {
  return chart._fullData.map((trace, i) => i).filter((i) => chart._fullData[i].showlegend);
}
function makeReachable(chart) {
  entries(chart).forEach((entry, i) => {
    const trace = chart._fullData[shownInLegend(chart)[i]];
    entry.setAttribute('tabindex', '0');
    entry.setAttribute('role', 'button');
    entry.setAttribute('aria-label', trace.name);
    entry.setAttribute('aria-pressed', trace.visible === true);
  });
}
for (const chart of charts) {
  makeReachable(chart);
  chart.on('plotly_afterplot', () => makeReachable(chart));
  chart.addEventListener('keydown', async (event) => {
    const i = entries(chart).indexOf(event.target);
    if (i < 0 || !['Enter', ' '].includes(event.key)) return;
    event.preventDefault();
    const trace = shownInLegend(chart)[i];
    await Plotly.restyle(chart, {visible: chart._fullData[trace].visible === true ? 'legendonly' : true}, [trace]);
    entries(chart)[i].focus();
  });
}

// The drawing of the groups: one stop for the tab key, the arrows go on from there, and what is under the mouse or has
// the focus is told below.
for (const drawing of document.querySelectorAll('.groups')) {
  const rows = [...drawing.querySelectorAll('li')];
  const about = document.querySelector('.about');
  const tell = (event) => {
    const row = event.target.closest('li');
    if (row) about.textContent = row.getAttribute('aria-label');
  };
  drawing.addEventListener('mouseover', tell);
  drawing.addEventListener('focusin', tell);
  drawing.addEventListener('keydown', (event) => {
    const step = {ArrowDown: 1, ArrowUp: -1, Home: -rows.length, End: rows.length}[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(rows.length - 1, rows.indexOf(document.activeElement) + step));
    rows[next].focus();
  });
}

// Published speed-ups: the rows that every chosen filter fits.
for (const filters of document.querySelectorAll('.filters')) {
  const rows = [...document.querySelectorAll('.fact')];
  filters.addEventListener('input', () => {
    const chosen = [...new FormData(filters)].filter(([, value]) => value);
    for (const row of rows) row.hidden = chosen.some(([name, value]) => row.dataset[name] !== value);
    const shown = rows.filter((row) => !row.hidden).length;
    filters.querySelector('output').textContent = shown === 1 ? '1 row' : `${shown} rows`;
  });
}

// A sweep: its versions by another cost. A click on one opens its page.
for (const choices of document.querySelectorAll('.views')) {
  const chart = charts[0];
  choices.addEventListener('change', (event) => {
    const {places, layout} = JSON.parse(event.target.dataset.view);
    Plotly.update(chart, places, layout);
  });
  chart.on('plotly_click', ({points: [point]}) => {
    if (point.customdata) location.href = point.customdata;
  });
}
