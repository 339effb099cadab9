-- wrk: every connection sends the same request again as soon as it has its answer; prints the totals as JSON.
-- Arguments after `--`: content type, file with the body, then name and value of each further header.

function init(args)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = args[1]
  for i = 3, #args, 2 do
    wrk.headers[args[i]] = args[i + 1]
  end
  local file = assert(io.open(args[2], "rb"))
  wrk.body = file:read("*a")
  file:close()
  request_bytes = wrk.format()
end

function request()
  return request_bytes
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\nRESULT {"requests": %d, "seconds": %.6f, "p50_ms": %.4f, "p99_ms": %.4f, "max_ms": %.4f, ' ..
    '"errors": {"connect": %d, "read": %d, "write": %d, "timeout": %d, "status": %d}}\n',
    summary.requests, summary.duration / 1e6,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000, latency.max / 1000,
    errors.connect, errors.read, errors.write, errors.timeout, errors.status))
end
