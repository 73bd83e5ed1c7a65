// Starts the episode of a MiniWoB++ page and freezes its end. Loaded right after core.js.
//
// A page calls core.startEpisode once it has loaded, to wait for a click, and core.endEpisode calls
// it again. The first call here starts the episode at once, with the seed of the address. The
// second ends the page: an agent has one attempt, so a reload shows the end again.

(() => {
  const LONGEST_MS = 2 ** 31 - 1; // of setTimeout; the harness has a time limit of its own
  const address = location.pathname + location.search;
  const seed = new URLSearchParams(location.search).get("seed");
  const showStart = core.startEpisode;
  let hasStarted = false;

  const hud = document.createElement("style"); // it counts seconds, which no page of a rerun repeats
  hud.textContent = "#reward-display, #click-canvas { display: none }";
  document.head.append(hud);

  function showEnd() {
    document.body.replaceChildren("The episode is over.");
  }

  // What an agent sees after an action must not depend on how soon it looks.
  function stopClocks() {
    if (!window.jQuery) return;
    jQuery.fx.off = true; // animations
    const { autocomplete, menu } = jQuery.ui ?? {};
    if (autocomplete) autocomplete.prototype.options.delay = 0;
    if (menu) menu.prototype.delay = 0;
  }

  core.startEpisode = () => {
    if (hasStarted) {
      localStorage.setItem(address, WOB_RAW_REWARD_GLOBAL);
      showEnd();
      return;
    }
    hasStarted = true;
    const reward = localStorage.getItem(address);
    if (reward !== null) {
      WOB_DONE_GLOBAL = true;
      WOB_RAW_REWARD_GLOBAL = Number(reward);
      showEnd();
      return;
    }
    showStart();
    stopClocks();
    core.EPISODE_MAX_TIME = LONGEST_MS; // the page has set its own limit by now
    Math.seedrandom(seed);
    core.startEpisodeReal();
  };

  Math.seedrandom(seed); // for what the page draws while it loads
})();
