// The families of messages that pasted lines belong to: by their patterns, or else by words that stand in no other.
const MOST = 8;
const PREFIXES = ["", "h:1:1 [0] f.cc:1 NCCL WARN ", "h:1:1 [0] NCCL INFO "]; // a line may be pasted without its own

function familiesOf(line) {
  const found = new Map();
  const general = new Set();
  for (const [frame, anchor, regex, isGeneral] of FIND.shapes) {
    if (isGeneral) general.add(frame);
    const prefixes = isGeneral || !regex.includes("(?<tid>") ? [""] : PREFIXES;
    const texts = prefixes.map((prefix) => prefix + line);
    if (!texts.some((text) => text.includes(anchor))) continue;
    let length = 0;
    try {
      const pattern = new RegExp(regex);
      const matches = texts.map((text) => text.match(pattern)).filter(Boolean);
      length = Math.max(0, ...matches.map((match) => match[0].length + line.length));
    } catch {
      length = 0; // a pattern that this browser cannot read
    }
    if (!length && line.includes(anchor) && anchor.trim().length >= FIND.shortest) length = anchor.length;
    if (length > (found.get(frame) || 0)) found.set(frame, length);
  }
  const ordered = [...found].sort((one, other) => general.has(one[0]) - general.has(other[0]) || other[1] - one[1]);
  const isMatched = ordered.some(([, length]) => length > line.length);
  return ordered.filter(([, length]) => !isMatched || length > line.length).map(([frame]) => frame);
}

function variablesIn(text) {
  const words = new Set(text.match(/[A-Z][A-Z0-9_]+/g) || []);
  return FIND.variables.filter((name) => words.has(name));
}

function pagesFor(text) {
  const families = new Set();
  for (const line of text.split("\n").filter((line) => line.trim())) {
    familiesOf(line).slice(0, MOST).forEach((frame) => families.add(frame));
  }
  return [
    ...[...families].map((frame) => ["messages/" + frame + ".html", "messages: " + frame]),
    ...variablesIn(text).map((name) => ["variables/" + name + ".html", name]),
  ];
}

if (typeof document !== "undefined") {
  const box = document.getElementById("find-line");
  const list = document.getElementById("find-found");
  box.addEventListener("input", () => {
    const pages = pagesFor(box.value);
    list.replaceChildren(
      ...pages.map(([page, name]) => {
        const item = document.createElement("li");
        const link = item.appendChild(document.createElement("a"));
        link.href = page;
        link.textContent = name;
        return item;
      }),
    );
    if (!pages.length && box.value.trim()) {
      list.appendChild(document.createElement("li")).textContent = "No family of messages is known for it.";
    }
  });
}
