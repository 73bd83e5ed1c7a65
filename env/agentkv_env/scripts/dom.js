// DOM properties read through the prototypes of this world.
//
// In every world, a field named `childNodes` hides its form's property of that name, and an image
// named `body` hides the document's. The page cannot change the prototypes of this world.

const getter = (type, name) =>
  Function.prototype.call.bind(Object.getOwnPropertyDescriptor(type.prototype, name).get);
const method = (type, name) => Function.prototype.call.bind(type.prototype[name]);

const nodeTypeOf = getter(Node, "nodeType"), childNodesOf = getter(Node, "childNodes");
const parentNodeOf = getter(Node, "parentNode"), parentElementOf = getter(Node, "parentElement");
const documentOf = getter(Node, "ownerDocument"), textContentOf = getter(Node, "textContent");
const isConnected = getter(Node, "isConnected"), nextSiblingOf = getter(Node, "nextSibling");
const previousOf = getter(Node, "previousSibling");
const rootOf = method(Node, "getRootNode");

const tagOf = getter(Element, "localName"), openRootOf = getter(Element, "shadowRoot");
const childElementsOf = getter(Element, "children");
const attributeOf = method(Element, "getAttribute"), hasAttribute = method(Element, "hasAttribute");
const queryIn = method(Element, "querySelector"), queryAllIn = method(Element, "querySelectorAll");
const closestOf = method(Element, "closest");
const matches = method(Element, "matches"), isVisible = method(Element, "checkVisibility");
const closest = method(Element, "closest");
const clientRectsOf = method(Element, "getClientRects");
const boxOf = method(Element, "getBoundingClientRect");
const clientHeightOf = getter(Element, "clientHeight");
const clientWidthOf = getter(Element, "clientWidth");
const scrollHeightOf = getter(Element, "scrollHeight"), scrollTopOf = getter(Element, "scrollTop");
const scrollWidthOf = getter(Element, "scrollWidth"), scrollLeftOf = getter(Element, "scrollLeft");
const scrollIntoView = method(Element, "scrollIntoView"), scrollBy = method(Element, "scrollBy");

const rootElementOf = getter(Document, "documentElement"), bodyOf = getter(Document, "body");
const scrollingElementOf = getter(Document, "scrollingElement");
const viewOf = getter(Document, "defaultView"), titleOf = getter(Document, "title");
const readyStateOf = getter(Document, "readyState"), hasFocus = method(Document, "hasFocus");
const insertText = method(Document, "execCommand");
const queryAllInDocument = method(Document, "querySelectorAll");
const animationsOf = method(Document, "getAnimations");
const newRange = method(Document, "createRange"), newElement = method(Document, "createElement");

// Several classes define these properties; only a form's can be hidden. A `<form>` in SVG is none.
const namespaceOf = getter(Element, "namespaceURI");
const isForm = (el) => tagOf(el) === "form" && namespaceOf(el) === "http://www.w3.org/1999/xhtml";
const ofForm = (name) => {
  const read = getter(HTMLElement, name);
  return (el) => isForm(el) ? read(el) : el[name];
};
const tabIndexOf = ofForm("tabIndex"), innerTextOf = ofForm("innerText");
const tooltipOf = ofForm("title");
const labelsOf = (el) => isForm(el) ? null : el.labels;
const focusOn = (el) => isForm(el) ? HTMLElement.prototype.focus.call(el) : el.focus();
const isDocument = (root) => nodeTypeOf(root) === 9;
const activeInDocument = getter(Document, "activeElement");
const activeIn = (root) => isDocument(root) ? activeInDocument(root) : root.activeElement;
const hitInDocument = method(Document, "elementFromPoint");
const hitIn = (root, x, y) =>
  isDocument(root) ? hitInDocument(root, x, y) : root.elementFromPoint(x, y);
const byIdInDocument = method(Document, "getElementById");
const byIdIn = (root, id) => isDocument(root) ? byIdInDocument(root, id)
  : nodeTypeOf(root) === 11 ? root.getElementById(id) : null;
