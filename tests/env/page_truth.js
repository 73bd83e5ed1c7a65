// Returns the words, headings, controls, rows and preformatted lines that the browser draws.
() => {
  const shown = (element, rect) => {
    const right = Math.min(rect.right, innerWidth), bottom = Math.min(rect.bottom, innerHeight);
    const x = (Math.max(rect.x, 0) + right) / 2, y = (Math.max(rect.y, 0) + bottom) / 2;
    if (rect.width < 1 || rect.height < 1 || right < rect.x + 2 || bottom < rect.y + 2) return false;
    return element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) &&
      document.elementsFromPoint(x, y).includes(element);
  };
  const blockOf = (element) => {
    while (getComputedStyle(element).display.startsWith("inline")) element = element.parentElement;
    return element;
  };

  const words = [];
  let last = null; // the end of a word that the next text node may continue
  const texts = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const parent = text.parentElement;
    if (parent.closest("script,style,noscript,textarea,option,title")) continue;
    if (parent.closest("a[aria-label],button[aria-label],[role=button][aria-label]")) continue;
    for (const { 0: word, index } of text.data.matchAll(/[\p{L}\p{N}]+/gu)) {
      const range = document.createRange();
      range.setStart(text, index);
      range.setEnd(text, index + word.length);
      const rect = range.getBoundingClientRect();
      if (!shown(parent, rect)) continue;
      const block = blockOf(parent);
      const continues = last && !index && last.block === block &&
        Math.abs(last.right - rect.left) < 0.5 && Math.abs(last.bottom - rect.bottom) < 5;
      if (continues) words.at(-1).text += word;
      else words.push({ text: word, labels: !!parent.closest("label") });
      const ends = index + word.length === text.data.length;
      last = ends ? { block, right: rect.right, bottom: rect.bottom } : null;
    }
  }

  const all = (selector) => [...document.querySelectorAll(selector)]
    .filter((each) => [...each.getClientRects()].some((rect) => shown(each, rect)));
  const controls = "a[href],button,input:not([type=hidden]),select,textarea,summary";
  const blocks = `${controls},img,canvas,table,iframe,pre`;
  return {
    words,
    headings: all("h1,h2,h3,h4,h5,h6").filter((each) => !each.hasAttribute("role")).map((each) => each.innerText),
    controls: all(controls).map((each) => {
      const { x, y } = each.getClientRects()[0];
      return { tag: each.tagName.toLowerCase(), text: each.innerText, x, y };
    }),
    rows: all("tr").filter((each) => !each.querySelector(`${blocks},[onclick]`))
      .map((row) => [...row.cells].flatMap(
        (cell) => [cell.innerText, ...Array(cell.colSpan - 1).fill("")])),
    lines: all("pre").filter((each) => !each.querySelector(blocks))
      .flatMap((each) => each.innerText.split("\n")),
  };
}
