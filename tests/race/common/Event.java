import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadFeature;
import java.io.IOException;
import java.time.LocalDate;

/** Of an event as much as the windows need, taken out by Jackson's streaming parser. */
public final class Event {
  private static final JsonFactory JSON =
      JsonFactory.builder().enable(StreamReadFeature.USE_FAST_DOUBLE_PARSER).build();

  public boolean isTelemetry;
  public String workload;
  public String device;
  public long micros;
  public double joulesTotal;
  public double samplesTotal;

  private static String lastDate = "";
  private static long lastDay;

  /** Returns null for a heartbeat or a value without an event. */
  public static Event parse(byte[] value) throws IOException {
    if (value == null || value.length < 3) {
      return null;
    }
    Event event = new Event();
    try (JsonParser parser = JSON.createParser(value)) {
      if (parser.nextToken() != JsonToken.START_OBJECT) {
        throw new IOException("an event is no object");
      }
      for (String field; (field = parser.nextFieldName()) != null; ) {
        JsonToken token = parser.nextToken();
        switch (field) {
          case "time" -> event.micros = micros(parser.getText());
          case "workload" -> event.workload = parser.getText();
          case "device" -> {
            event.isTelemetry = true;
            event.device = parser.getText();
          }
          case "energy_joules_total" -> event.joulesTotal = parser.getDoubleValue();
          case "samples_total" -> event.samplesTotal = parser.getDoubleValue();
          default -> {
            if (token.isStructStart()) {
              parser.skipChildren();
            }
          }
        }
      }
    }
    return event;
  }

  /** Reads 2023-11-14T22:14:00.000000Z; the day is remembered, since the next event is of the same one. */
  private static long micros(String text) {
    if (!text.startsWith(lastDate) || lastDate.isEmpty()) {
      lastDate = text.substring(0, 10);
      lastDay = LocalDate.parse(lastDate).toEpochDay();
    }
    long second = lastDay * 86_400 + number(text, 11, 13) * 3_600 + number(text, 14, 16) * 60 + number(text, 17, 19);
    return second * 1_000_000 + number(text, 20, 26);
  }

  private static long number(String text, int from, int to) {
    long number = 0;
    for (int i = from; i < to; i++) {
      number = number * 10 + (text.charAt(i) - '0');
    }
    return number;
  }

  /** The line of a window, as every peer writes it. */
  public static String window(String workload, long startMicros, double joules, double samples) {
    return "{\"workload\":\"" + workload + "\",\"start_micros\":" + startMicros + ",\"energy_joules\":" + joules
        + ",\"samples\":" + samples + "}";
  }
}
