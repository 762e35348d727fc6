// The theme's search, which looks for every word as the beginning of a word: "a" would be found in "adapt", and "PDFs" not in
// "PDF". So the small words of a question are left out, and plurals are searched by their singular.
const SMALL = new Set(
  "a an and are as at be by can do does for from have how i in into is it its me my of on or our that the their them this to use using want was we what when where which who why with you your".split(" ")
)

function words(question) {
  const all = question.split(/\s+/).filter(Boolean)
  const telling = all.filter((word) => !SMALL.has(word.toLowerCase().replace(/\W+$/, "")))
  return (telling.length ? telling : all)
    .map((word) => word.replace(/[?!.,;]+$/, ""))
    .map((word) => word.replace(/(?<=ss|x|ch|sh)es$|(?<=\w\w[^su])s$/i, ""))
    .join(" ")
}

const QUERY = 2 // the theme's kind of message that holds what was typed

addEventListener("message", (event) => {
  const { type, data } = event.data
  if (type !== QUERY || typeof data !== "string" || !event.isTrusted) return
  event.stopImmediatePropagation()
  dispatchEvent(new MessageEvent("message", { data: { type, data: words(data) } }))
})

importScripts(decodeURIComponent(location.search.slice(1)))
