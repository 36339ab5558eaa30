// Decompress the arrays and scripts that the page contains. Nothing is requested from the network.

/** The bytes of an element that holds gzip data as base64. */
async function decompress(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (char) => char.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

const TYPES = { f8: Float64Array, f4: Float32Array, f2: Uint16Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

/** Every described array, as a view into the buffer; half precision has no typed array and is converted. */
function viewArrays(described, buffer) {
  return described.map(({ type, start, length }) => {
    const values = new TYPES[type](buffer, start, length);
    return type === "f2" ? Float32Array.from(values, halfToFloat) : values;
  });
}

/** A half-precision number from its 16 bits. */
function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** Unpack bits into a mask with a byte per image. */
function unpackBits(bytes, length) {
  return Uint8Array.from({ length }, (_, i) => (bytes[i >> 3] >> (i & 7)) & 1);
}

/** Run the script that an element holds in compressed form. */
async function loadScript(id) {
  const script = document.createElement("script");
  script.textContent = new TextDecoder().decode(await decompress(id));
  document.head.append(script);
}
