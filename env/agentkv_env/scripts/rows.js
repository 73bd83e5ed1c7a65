// Rows: which nodes belong to one row of a table, a grid, a list of terms or a list of cards.
//
// A row is found once its nodes are: `w` of a node is then [number of the row, column, 1 in a row that
// names the columns]. What is too long for one line, such as a table around a page, is no row.

const CELLS = "td,th,[role=cell],[role=gridcell],[role=columnheader],[role=rowheader]";
const CARDS = new Set(["li", "article"]);
// Elements that are cards if several alike stand beside each other. All limits are our choice.
const PLAIN_CARDS = new Set(["div", "section", "form", "fieldset", "details", "figure", "a", "label"]);
const MIN_ALIKE = 3; // such boxes
const MAX_IN_ROW = 100, MAX_IN_CARD = 12, MAX_IN_CELL = 8; // nodes
const MAX_BESIDE_ROWS = 6; // nodes of a row around other rows
const MAX_IN_GRID_CELL = 3; // nodes; a box with more is a card or a part of the page
const MAX_IN_ONLY_CELL = 4; // nodes of a row with a single cell
const MAX_ROW_TEXT = 2000, MAX_CARD_TEXT = 500; // characters
const MAX_CELLS = 500; // of one row, empty ones included
const MAX_LOOKED_AT = 1000; // nodes of an element; boxes may nest deeply around many
const WHOLE_ROW = -1; // column of a node that is the row itself

let numRows = 0;
let cardRows = new Set(); // numbers of rows that give way to a table's around them
let placed = new WeakMap(); // cell -> column, of tables with cells that span rows ...
let spanned = new WeakMap(); // ... and whether a table has some
let alike = new WeakMap(); // parent -> kind of child -> number

function beginRows() {
  numRows = 0;
  cardRows = new Set();
  [placed, spanned, alike] = [new WeakMap(), new WeakMap(), new WeakMap()];
}

const isRow = (el, tag, style) =>
  tag === "tr" || attributeOf(el, "role") === "row" || style.display === "table-row";

// Marks the nodes from `start` on, those of an element, if they are a row or the rows of a list.
function joinRows(el, tag, style, nodes, sources, start) {
  if (nodes.length === start || nodes.length > start + MAX_LOOKED_AT || isOverdue()) return;
  if (isRow(el, tag, style)) joinCells(el, nodes, sources, start);
  else if (tag === "dl") joinTerms(el, nodes, sources, start);
  else if (nodes.length < start + 2) return;
  else if (!joinCard(el, tag, nodes, sources, start) && style.display.endsWith("grid")) {
    joinGrid(el, nodes, sources, start);
  }
}

// Returns what marks the one node of a table row without controls.
function textRow(row) {
  const cells = cellTexts(row);
  return cells.length > 1 ? { l: cells, w: [++numRows, WHOLE_ROW, namesColumns(row)] } : {};
}

function cellTexts(row) {
  const texts = [];
  for (const [cell, column] of columnsOf(row)) {
    while (texts.length < Math.min(column, MAX_CELLS)) texts.push("");
    texts.push(textOf(cell));
  }
  while (texts.length && !texts.at(-1)) texts.pop();
  return texts;
}

function namesColumns(row) {
  const cells = [...columnsOf(row).keys()].filter((cell) => collapse(textContentOf(cell)));
  const parent = parentElementOf(row);
  if (parent && tagOf(parent) === "thead") return 1;
  return +(cells.length > 1 && cells.every((cell) => attributeOf(cell, "role")
    ? attributeOf(cell, "role") === "columnheader" : tagOf(cell) === "th"));
}

// Returns the cells of a row and the column of each.
function columnsOf(row) {
  const columns = new Map();
  const cells = cellsOf(row);
  if (cells.length) {
    const table = closest(row, "table");
    const isPlaced = table && hasSpans(table);
    let column = 0;
    for (const cell of cells) {
      columns.set(cell, isPlaced ? placed.get(cell) ?? column : column);
      column += Math.min(cell.colSpan, MAX_COLUMNS);
    }
    return columns;
  }
  const found = [...queryAllIn(row, CELLS)].slice(0, MAX_CELLS)
    .filter((cell) => closest(parentElementOf(cell), "[role=row]") === row);
  const parts = found.length ? found : [...childrenOf(row)].filter((child) => nodeTypeOf(child) === 1);
  for (const cell of parts.slice(0, MAX_CELLS)) columns.set(cell, columns.size);
  return columns;
}

// Returns whether cells of a table span rows; their columns are then in `placed`.
function hasSpans(table) {
  if (spanned.has(table)) return spanned.get(table);
  spanned.set(table, Boolean(queryIn(table, "[rowspan]")));
  if (!spanned.get(table)) return false;
  const taken = []; // column -> rows that a cell above still takes
  for (const row of table.rows || []) {
    if (isOverdue()) break;
    let column = 0;
    for (const cell of row.cells) {
      while (taken[column] > 0) column++;
      if (column > MAX_CELLS) break;
      placed.set(cell, column);
      const width = Math.min(cell.colSpan, MAX_COLUMNS);
      for (const end = column + width; column < end; column++) taken[column] = cell.rowSpan || Infinity;
    }
    taken.forEach((rows, index) => { taken[index] = rows - 1; });
  }
  return true;
}

// Returns the first of `parts` that holds a node, or null.
function partWith(source, parts, around) {
  for (let node = source; node && node !== around; node = parentOf(node)) if (parts.has(node)) return node;
  return null;
}

const lengthOf = (node) => node.n.length + (node.v?.length || 0);
const isStray = (node) => node.k === "frame" || node.r === "code" || node.r === "area";
const isInTable = (node) => node.w && !cardRows.has(node.w[0]);

// Makes a row of nodes, each with its column.
function mark(members, isCard, names = 0) {
  numRows++;
  if (isCard) cardRows.add(numRows);
  for (const [node, column] of members) node.w = [numRows, column, names];
}

function joinCells(row, nodes, sources, start) {
  const columns = columnsOf(row), inCell = new Map();
  let members = [], length = 0;
  for (let index = start; index < nodes.length; index++) {
    if (isOverdue()) return;
    const node = nodes[index], cell = partWith(sources[index], columns, row);
    if (!cell && sources[index] !== row) {
      if (!members.length) continue; // text before a row that breaks no line
      return;
    }
    if (isStray(node)) return;
    members.push([node, cell ? columns.get(cell) : WHOLE_ROW]);
  }
  const hasRows = members.some(([node]) => isInTable(node));
  if (hasRows) members = members.filter(([node]) => !isInTable(node));
  for (const [node, column] of members) {
    length += lengthOf(node);
    inCell.set(column, (inCell.get(column) || 0) + 1);
  }
  if (members.length > (hasRows ? MAX_BESIDE_ROWS : columns.size > 1 ? MAX_IN_ROW : MAX_IN_ONLY_CELL)) return;
  if (length > MAX_ROW_TEXT || Math.max(...inCell.values()) > MAX_IN_CELL) return;
  if (members.length === 1) {
    const [[node, column]] = members, cells = column === WHOLE_ROW ? cellTexts(row) : [];
    if (cells.length < 2) return;
    node.l = cells;
  }
  mark(members, false, namesColumns(row));
}

// Terms and what is said of them.
function joinTerms(list, nodes, sources, start) {
  const groups = [], parts = new Set(queryAllIn(list, "dt,dd"));
  let last = null, column = 0;
  for (let index = start; index < nodes.length; index++) {
    const part = partWith(sources[index], parts, list), isTerm = part && tagOf(part) === "dt";
    if (!part || (isTerm && (!last || tagOf(last) === "dd"))) {
      groups.push([]);
      column = 0;
    } else if (part !== last) column++;
    last = part;
    groups.at(-1)?.push([nodes[index], column]);
  }
  for (const group of groups) if (isShort(group.map(([node]) => node))) mark(group, true);
}

function isShort(nodes) {
  if (nodes.length < 2 || nodes.length > MAX_IN_CARD) return false;
  if (nodes.some((node) => isStray(node) || isInTable(node))) return false;
  const rows = new Set(nodes.filter((node) => node.w).map((node) => node.w[0]));
  return rows.size < 2 && nodes.reduce((sum, node) => sum + lengthOf(node), 0) <= MAX_CARD_TEXT;
}

// An item of a list, or one of several boxes alike with something to act on.
function joinCard(el, tag, nodes, sources, start) {
  if (nodes.length > start + MAX_IN_CARD + 1) return false;
  const role = attributeOf(el, "role"), isItem = CARDS.has(tag) || role === "listitem" || role === "article";
  if (!isItem && !PLAIN_CARDS.has(tag) && !tag.includes("-")) return false;
  const own = nodes.slice(start).filter((_, index) => isInside(sources[start + index], el));
  if (!isShort(own) || !(isItem || own.some((node) => node.i))) return false;
  if (numAlike(el, tag) < (isItem ? 2 : MIN_ALIKE)) return false;
  mark(own.map((node, column) => [node, column]), true);
  return true;
}

// Returns how many children of an element's parent are of its kind, itself included.
function numAlike(el, tag) {
  const parent = parentNodeOf(el);
  if (!parent) return 0;
  const kindOf = (child, tag) => {
    if (CARDS.has(tag)) return tag;
    const [first] = (attributeOf(child, "class") || "").trim().split(/\s+/);
    return `${tag} ${first || [...childElementsOf(child)].slice(0, MAX_IN_CARD).map(tagOf)}`;
  };
  if (!alike.has(parent)) {
    const kinds = new Map();
    for (const child of childNodesOf(parent)) {
      if (nodeTypeOf(child) !== 1) continue;
      const kind = kindOf(child, tagOf(child));
      kinds.set(kind, (kinds.get(kind) || 0) + 1);
    }
    alike.set(parent, kinds);
  }
  return alike.get(parent).get(kindOf(el, tag)) || 0;
}

// The cells of a grid that a style sheet makes, without elements for its rows.
function joinGrid(grid, nodes, sources, start) {
  const children = new Set([...childrenOf(grid)].filter((child) => nodeTypeOf(child) === 1));
  const rows = new Map(), lefts = new Set(), inCell = new Map();
  for (let index = start; index < nodes.length; index++) {
    if (isOverdue()) return;
    const node = nodes[index], cell = partWith(sources[index], children, grid);
    if (!cell || node.w || isStray(node)) return;
    inCell.set(cell, (inCell.get(cell) || 0) + 1);
    if (inCell.get(cell) > MAX_IN_GRID_CELL) return;
    const box = boxOf(cell), middle = box.y + box.height / 2;
    const top = [...rows.keys()].find((each) => each.y <= middle && middle <= each.y + each.height) || box;
    if (!rows.has(top)) rows.set(top, []);
    rows.get(top).push([node, Math.round(box.x)]);
    lefts.add(Math.round(box.x));
  }
  if (rows.size < 2 || lefts.size < 2) return;
  const places = [...lefts].sort((one, other) => one - other);
  for (const row of rows.values()) {
    const length = row.reduce((sum, [node]) => sum + lengthOf(node), 0);
    if (row.length < 2 || row.length > MAX_IN_ROW || length > MAX_CARD_TEXT) continue;
    mark(row.map(([node, left]) => [node, places.indexOf(left)]), false);
  }
}
