// JSON with its numbers as they were written. JavaScript holds 16 digits of a number, and payloads may have more.

/** A number that is only in digits, or in a size, that JavaScript does not hold. */
const LONG = /[\d.]{16}|[eE][+-]?\d{3}/

/** The digits that decide a number: without its sign, point, exponent, and zeros at its ends. */
const digits = text => text.replace(/[eE].*|[-.]/g, "").replace(/^0+|0+$/g, "")

/** Like JSON.parse. A number that would be changed becomes a JSON.rawJSON of its text, if the browser knows that. */
export function parseJson(text) {
  if (!JSON.rawJSON || !LONG.test(text)) return JSON.parse(text)
  return JSON.parse(text, (_, value, { source }) => typeof value === "number" && digits(String(value)) !== digits(source) ? JSON.rawJSON(source) : value)
}

/** True for an object or a list, and false for a number that is kept as its text. */
export const isTree = value => value !== null && typeof value === "object" && !JSON.isRawJSON?.(value)
