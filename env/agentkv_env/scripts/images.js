// Images and canvases: their pixels, and the hashes under which Python caches their text.

const MIN_PICTURE = [40, 14]; // width and height; smaller pictures have no readable text
const MAX_PICTURE = 1600; // pixels per side; larger pictures are scaled down

const hashes = new WeakMap(); // image -> {source, hash}
const pictures = new Map(); // picture number -> WeakRef(image), for pixels()
const pictureIds = new WeakMap();
let nextPicture = 1;

// cyrb53 over the pixels: fast, and 53 bits suffice for the images of one cache.
function hashOf(words) {
  let a = 0xdeadbeef ^ words.length, b = 0x41c6ce57;
  for (let i = 0; i < words.length; i++) {
    a = Math.imul(a ^ words[i], 2654435761);
    b = Math.imul(b ^ words[i], 1597334677);
  }
  a = Math.imul(a ^ (a >>> 16), 2246822507) ^ Math.imul(b ^ (b >>> 13), 3266489909);
  b = Math.imul(b ^ (b >>> 16), 2246822507) ^ Math.imul(a ^ (a >>> 13), 3266489909);
  return (4294967296 * (2097151 & b) + (a >>> 0)).toString(36);
}

function draw(image) {
  const width = image.naturalWidth || image.width, height = image.naturalHeight || image.height;
  const scale = Math.min(1, MAX_PICTURE / Math.max(width, height));
  const canvas = newElement(document, "canvas"); // never attached to the page
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.fillStyle = "white";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return [canvas, pen];
}

// Returns the number and pixel hash of a picture; the hash is "" if Python must crop a screenshot.
function picture(el, plain) {
  if (!pictureIds.has(el)) {
    pictureIds.set(el, nextPicture);
    pictures.set(nextPicture++, new WeakRef(el));
  }
  const number = pictureIds.get(el);
  const source = plain ? el.currentSrc || tagOf(el) : "background";
  const known = hashes.get(el);
  if (known && known.source === source && tagOf(el) === "img") return [number, known.hash];
  let hash = "";
  if (plain) {
    try {
      const [canvas, pen] = draw(el);
      const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data;
      hash = hashOf(new Uint32Array(pixels.buffer)) + `-${canvas.width}x${canvas.height}`;
    } catch {
      hash = ""; // pixels of another origin may be shown but not read
    }
  }
  hashes.set(el, { source, hash });
  return [number, hash];
}

// Returns the pixels of a picture as a PNG data URL, or "" if they may not be read.
function pixels(number) {
  const el = pictures.get(number)?.deref();
  try { return el ? draw(el)[0].toDataURL("image/png") : ""; } catch { return ""; }
}
