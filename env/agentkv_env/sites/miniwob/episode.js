// Starts the episode of a MiniWoB++ page and freezes its end. Loaded right after core.js.
//
// A page calls core.startEpisode once it has loaded, to wait for a click, and core.endEpisode calls
// it again. Here the first call starts the episode at once, with the seed of the address, and the
// second ends the page. The first end counts: another tab, a reload or another form of the address
// shows it again and gives no second attempt.

(() => {
  const LONGEST_MS = 2 ** 31 - 1; // of setTimeout; the harness has a time limit of its own
  const seed = new URLSearchParams(location.search).get("seed");
  const episode = `${decodeURIComponent(location.pathname)} ${seed}`;
  const showStart = core.startEpisode;
  let hasStarted = false;

  const hud = document.createElement("style"); // it shows the seconds left
  hud.textContent = "#reward-display, #click-canvas { display: none }";
  document.head.append(hud);

  // What an agent sees after an action must not depend on how soon it looks.
  function stopClocks() {
    if (!window.jQuery) return;
    jQuery.fx.off = true; // animations
    const { autocomplete, menu } = jQuery.ui ?? {};
    if (autocomplete) autocomplete.prototype.options.delay = 0;
    if (menu) menu.prototype.delay = 0;
  }

  core.startEpisode = () => {
    if (hasStarted && localStorage.getItem(episode) === null) {
      localStorage.setItem(episode, WOB_RAW_REWARD_GLOBAL);
    }
    const reward = localStorage.getItem(episode);
    if (reward !== null) {
      WOB_DONE_GLOBAL = true;
      WOB_RAW_REWARD_GLOBAL = Number(reward);
      document.body.replaceChildren("The episode is over.");
      return;
    }
    hasStarted = true;
    showStart();
    stopClocks();
    core.EPISODE_MAX_TIME = LONGEST_MS; // the page has set its own limit by now
    Math.seedrandom(seed);
    core.startEpisodeReal();
  };

  Math.seedrandom(seed); // for what the page draws while it loads
})();
