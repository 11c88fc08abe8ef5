// Sentences about what is seen.

function times(ratio) {
  return ratio >= 100 ? "more than 100" : String(Number(ratio.toPrecision(ratio < 1.1 ? 3 : 2)));
}

// How far x is from c against how far c is from x.
function asymmetryWords(forth, back, symmetric) {
  if (!Number.isFinite(forth) && !Number.isFinite(back)) return "x lies outside of where the divergence is defined.";
  if (forth === 0 && back === 0) return "x and c are the same to this divergence.";
  if (symmetric) return "Symmetric: x is as far from c as c is from x.";
  const ratio = Math.max(forth, back) / Math.min(forth, back);
  if (ratio < 1.02) return "x is as far from c as c is from x.";
  const [one, other] = forth > back ? ["x", "c"] : ["c", "x"];
  if (!Number.isFinite(ratio)) return `${one} is infinitely farther from ${other} than ${other} is from ${one}.`;
  return `${one} is ${times(ratio)} times as far from ${other} as ${other} is from ${one}.`;
}

function countWords(inside, total) {
  const [forth, back, both] = inside;
  if (forth === both && back === both) return `Within r of c: ${both} of ${total} points, by either direction.`;
  return `Within r of c: ${forth} of ${total} points by D(x, c), ${back} by D(c, x), ${both} by both.`;
}

function areaWords(forth, back) {
  const share = (value) => (value > 0 && value < 0.01 ? "less than 1" : Math.round(100 * value)) + " %";
  if (Math.abs(forth - back) < 0.003) return `Either ball covers ${share(forth)} of the plane.`;
  return `The solid ball covers ${share(forth)} of the plane, the dashed one ${share(back)}.`;
}

function farWords(count, total) {
  return count ? `${count} of ${total} points lie far outside; arrows at the edge point to them.` : "";
}

function agreementWords(first, second, classes, symmetric) {
  const common = first.filter((i) => second.includes(i)).length;
  const words = symmetric ? "This divergence is symmetric: both directions are one." : common === first.length ? "Both directions choose the same neighbours." : `Both directions share ${common} of ${first.length} neighbours.`;
  if (!classes) return words;
  const most = (rows) => {
    const counts = new Map();
    for (const i of rows) counts.set(classes[i], (counts.get(classes[i]) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1])[0];
  };
  const [one, two] = [most(first), most(second)];
  if (!one || !two) return words;
  const vote = ([name, count]) => `${name} (${count} of ${first.length})`;
  return one[0] === two[0] && one[1] === two[1] ? `${words} Most are ${vote(one)}.` : `${words} Most are ${vote(one)} by D(x, c), ${vote(two)} by D(c, x).`;
}
