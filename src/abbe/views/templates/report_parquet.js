"use strict";
// A Parquet file in one row group: plain values, no compression, a bit for every row that says whether it has one.
// The footer is in Thrift's compact protocol; the numbers of fields and types are those of parquet.thrift.
(() => {
  const abbe = window.abbe;
  const MAGIC = new TextEncoder().encode("PAR1");
  const TYPES = { int: 1, double: 5, text: 6 };
  const [PLAIN, RLE] = [0, 3];
  const OPTIONAL = 1;
  const UTF8 = 0;
  const [I32, I64, BINARY, LIST, STRUCT] = [5, 6, 8, 9, 12];

  class Bytes {
    constructor() {
      this.parts = [];
      this.length = 0;
    }

    add(bytes) {
      this.parts.push(bytes);
      this.length += bytes.length;
      return this;
    }

    joined() {
      const whole = new Uint8Array(this.length);
      let place = 0;
      for (const part of this.parts) {
        whole.set(part, place);
        place += part.length;
      }
      return whole;
    }
  }

  function varint(number) {
    const found = [];
    let rest = number;
    while (rest >= 128) {
      found.push((rest % 128) + 128);
      rest = Math.floor(rest / 128); // shifts would stop at 32 bits
    }
    return Uint8Array.from([...found, rest]);
  }

  function little(number) {
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setUint32(0, number, true);
    return bytes;
  }

  // A struct is a list of [number of the field, type, value]; a value of type LIST is [type of its items, items].
  function value(type, given) {
    if (type === I32 || type === I64) return varint(given * 2); // zigzag of a number that is not negative
    if (type === STRUCT) return struct(given);
    if (type === BINARY) {
      const text = new TextEncoder().encode(given);
      return new Bytes().add(varint(text.length)).add(text).joined();
    }
    const [itemType, items] = given;
    const found = new Bytes();
    if (items.length < 15) found.add(Uint8Array.of(items.length * 16 + itemType));
    else found.add(Uint8Array.of(240 + itemType)).add(varint(items.length));
    items.forEach((item) => found.add(value(itemType, item)));
    return found.joined();
  }

  function struct(fields) {
    const found = new Bytes();
    let last = 0;
    for (const [number, type, given] of fields) {
      found.add(Uint8Array.of((number - last) * 16 + type)).add(value(type, given));
      last = number;
    }
    return found.add(Uint8Array.of(0)).joined();
  }

  function levels(values) {
    const groups = Math.ceil(values.length / 8);
    const bits = new Uint8Array(groups);
    values.forEach((found, row) => {
      if (found !== null) bits[row >> 3] |= 1 << (row & 7);
    });
    const run = new Bytes().add(varint(groups * 2 + 1)).add(bits).joined();
    return new Bytes().add(little(run.length)).add(run).joined();
  }

  function plain(type, values) {
    const there = values.filter((found) => found !== null);
    if (type === "text") {
      const found = new Bytes();
      const known = new Map(); // few words, many rows
      for (const text of there) {
        if (!known.has(text)) {
          const bytes = new TextEncoder().encode(text);
          known.set(text, new Bytes().add(little(bytes.length)).add(bytes).joined());
        }
        found.add(known.get(text));
      }
      return found.joined();
    }
    const width = type === "int" ? 4 : 8;
    const bytes = new Uint8Array(there.length * width);
    const view = new DataView(bytes.buffer);
    const put = type === "int" ? "setInt32" : "setFloat64";
    there.forEach((found, row) => view[put](row * width, found, true));
    return bytes;
  }

  function page(type, values) {
    const content = new Bytes().add(levels(values)).add(plain(type, values)).joined();
    const about = [[1, I32, values.length], [2, I32, PLAIN], [3, I32, RLE], [4, I32, RLE]];
    const head = struct([[1, I32, 0], [2, I32, content.length], [3, I32, content.length], [5, STRUCT, about]]);
    return new Bytes().add(head).add(content).joined();
  }

  function schema(columns) {
    const root = [[4, BINARY, "schema"], [5, I32, columns.length]];
    const leaves = columns.map(({ name, type }) => [
      [1, I32, TYPES[type]], [3, I32, OPTIONAL], [4, BINARY, name],
      ...(type === "text" ? [[6, I32, UTF8], [10, STRUCT, [[1, STRUCT, []]]]] : []),
    ]);
    return [STRUCT, [root, ...leaves]];
  }

  // columns: [{ name, type: "int" | "double" | "text", values }], null for what is absent.
  function parquet(columns) {
    const rows = columns[0].values.length;
    const file = new Bytes().add(MAGIC);
    const chunks = rows === 0 ? [] : columns.map(({ name, type, values }) => {
      const [offset, bytes] = [file.length, page(type, values)];
      file.add(bytes);
      const about = [
        [1, I32, TYPES[type]], [2, LIST, [I32, [PLAIN, RLE]]], [3, LIST, [BINARY, [name]]], [4, I32, 0],
        [5, I64, rows], [6, I64, bytes.length], [7, I64, bytes.length], [9, I64, offset],
      ];
      return [[2, I64, offset], [3, STRUCT, about]];
    });
    const groups = rows === 0 ? [] : [[[1, LIST, [STRUCT, chunks]], [2, I64, file.length - 4], [3, I64, rows]]];
    const footer = struct([
      [1, I32, 1], [2, LIST, schema(columns)], [3, I64, rows], [4, LIST, [STRUCT, groups]], [6, BINARY, "abbe"],
    ]);
    return file.add(footer).add(little(footer.length)).add(MAGIC).joined();
  }

  abbe.parquet = parquet;
})();
